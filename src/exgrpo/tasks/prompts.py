"""In which words a question is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from exgrpo.errors import ConfigError

Message = dict[str, str]
Prompt = str | list[Message]


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A way to ask.

    Attributes:
        name: what it is called.
        style: `chat` gives messages, for a model's chat template; `text` a plain text, for base models.
        user: the words, with `{question}` where the question goes.
        system: a system prompt, None for none. Chat style only.
        thinks: whether a response is asked to think first and to end that with `</think>`.
        boxed: whether the answer is asked for in a box.
    """

    name: str
    style: Literal["chat", "text"]
    user: str = "{question}"
    system: str | None = None
    thinks: bool = False
    boxed: bool = False

    def render(self, question: str, *, system: str | None = None) -> Prompt:
        """Return the prompt that asks `question`.

        Args:
            question: its text. Braces in it are left alone.
            system: a system prompt of this question's own, in place of the template's.

        Raises:
            ConfigError: for a system prompt in text style.
        """
        text = self.user.replace("{question}", question)
        if self.style == "text":
            if system:
                raise ConfigError(
                    "data_system_column",
                    expected=f"no system prompt with the template {self.name}, which is plain text",
                    found=system[:60],
                    hint="use a template of chat style, or leave data_system_column out",
                )
            return text
        own = system or self.system
        messages = [{"role": "system", "content": own}] if own else []
        return [*messages, {"role": "user", "content": text}]


# The form is the paper's (arXiv 2510.02245, appendix B): a section of thought up to </think>, then a solution with a
# boxed answer; and for weak base models a plain text that asks for steps. The words are ours.
_THINK = (
    "Work on the problem in two parts. First think: write your reasoning between <think> and </think>, try ideas, "
    "check them, and go back where something is wrong. Then, after </think>, write the solution: the clean argument "
    "that leads to the answer, with the final answer, or the letter of the right option, in \\boxed{}."
)

TEMPLATES = {
    template.name: template
    for template in (
        PromptTemplate("think", "chat", system=_THINK, thinks=True, boxed=True),
        PromptTemplate("steps", "text", "Question: {question}\nAnswer: We go step by step.\n"),
        PromptTemplate(
            "boxed", "chat", "{question}\n\nReason step by step and put the final answer in \\boxed{}.", boxed=True
        ),
        PromptTemplate("plain", "text"),
        PromptTemplate("chat", "chat"),
    )
}


def find_template(name: str) -> PromptTemplate:
    """Return a template by name, or the one in a YAML file with the fields of `PromptTemplate`.

    Raises:
        ConfigError: where there is no such template, or the file does not hold one.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(
            "data_template", expected=f"{', '.join(TEMPLATES)}, or a YAML file", found=name, hint="see docs/data.md"
        )
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        template = PromptTemplate(**{"name": path.stem, **values})
    except (TypeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise _bad_file(path, str(error)) from error
    if template.style not in ("chat", "text") or "{question}" not in template.user:
        raise _bad_file(path, f"style {template.style!r}, user {template.user!r}")
    return template


def question_text(prompt: Any) -> str:
    """Return the words of a prompt that are its question: a text, or the last user message of a chat."""
    if isinstance(prompt, str):
        return prompt
    return next((message["content"] for message in reversed(prompt) if message["role"] == "user"), "")


def lettered(options: Sequence[str]) -> str:
    """Return the options of a multiple choice as lines `A) ...`."""
    return "\n".join(f"{letter}) {option}" for letter, option in zip("ABCDEFGHIJ", options, strict=False))


def _bad_file(path: Path, found: str) -> ConfigError:
    return ConfigError(
        str(path),
        expected="style (chat or text) and user with {question}, optionally system, thinks and boxed",
        found=found,
        hint="see docs/data.md",
    )
