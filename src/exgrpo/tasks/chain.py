"""The chain task: reasoning whose every step can be checked exactly.

A question is a chain of single digits, worked from left to right modulo 10. A response writes each step and then the
last digit:

    question = digit (operator digit)+ "="            3+7-5=
    response = step (";" step)* ";#" digit            3+7=0;0-5=5;#5
    step     = digit operator digit "=" digit

A wrong chain hits the right digit by luck about one time in ten, as wrong reasoning hits right answers elsewhere; here
it is a fact, and no judge's opinion, which answers were reasoned. Operators set how common luck is: plus and minus keep
an error alive, times can absorb it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from exgrpo.errors import ConfigError, DataError
from exgrpo.seeding import derive_rng
from exgrpo.types import Judgement

if TYPE_CHECKING:
    from datasets import Dataset

Split = Literal["train", "held_out"]

CHARACTERS = "0123456789+-*=;#"
MAX_TERMS = 10
_ANSWER = re.compile(r"#([0-9])\Z")
# Not \d, which takes the digits of every script.
_QUESTION = re.compile(r"[0-9](?:[+*-][0-9])+=")
_OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
# One question in this many belongs to the held-out side, by a hash of its text: no seed and no setting can move it.
_HELD_OUT_IN = 4


@dataclass(frozen=True, slots=True)
class ChainQuestion:
    """A question of the chain task.

    Attributes:
        id: stable id, the text of the question itself.
        prompt: the text of the question, `3+7-5=`.
        answer: the last digit, `5`.
        num_terms: how many digits the chain has: its difficulty.
    """

    id: str
    prompt: str
    answer: str
    num_terms: int


@dataclass(frozen=True)
class ChainSettings:
    """Which chains are asked.

    Raises:
        ConfigError: for operators, lengths or numbers that no chain can have.
    """

    chain_operators: str = field(
        default="+-", metadata={"help": "Operators, any of + - *. Times makes lucky answers common."}
    )
    chain_min_terms: int = field(default=4, metadata={"help": "Digits in the shortest chain, at least 2."})
    chain_max_terms: int = field(default=8, metadata={"help": f"Digits in the longest chain, at most {MAX_TERMS}."})
    chain_num_questions: int = field(default=4000, metadata={"help": "Distinct training questions."})
    chain_num_held_out: int = field(default=400, metadata={"help": "Distinct held-out questions."})

    def __post_init__(self) -> None:
        """Check that such chains exist, and enough of them."""
        operators = set(self.chain_operators)
        if not operators or not operators <= set("+-*"):
            self._refuse("chain_operators", "one or more of + - *", self.chain_operators, "write them without spaces")
        if not 2 <= self.chain_min_terms <= self.chain_max_terms <= MAX_TERMS:
            self._refuse(
                "chain_min_terms, chain_max_terms",
                f"2 <= chain_min_terms <= chain_max_terms <= {MAX_TERMS}",
                f"{self.chain_min_terms} and {self.chain_max_terms}",
                "the base policy was shown 2 to 10 terms",
            )
        for name, wanted in (
            ("chain_num_questions", self.chain_num_questions),
            ("chain_num_held_out", self.chain_num_held_out),
        ):
            # A length gives an equal share of the questions; the shortest has the fewest distinct chains.
            lengths = self.chain_max_terms - self.chain_min_terms + 1
            shortest = 10**self.chain_min_terms * len(operators) ** (self.chain_min_terms - 1)
            most = lengths * shortest // (2 * _HELD_OUT_IN)
            if not 1 <= wanted <= most:
                self._refuse(name, f"a number from 1 to {most}", wanted, "ask for fewer, or for longer chains")

    def _refuse(self, where: str, expected: str, found: object, hint: str) -> None:
        raise ConfigError(where, expected=expected, found=found, hint=hint)


def make_questions(settings: ChainSettings, *, seed: int, split: Split) -> list[ChainQuestion]:
    """Return distinct questions, the same number of each length (give or take one), in a mixed order.

    Args:
        settings: which chains.
        seed: which of them; two seeds give different questions of the same kind.
        split: `train` or `held_out`; a question belongs to one of the two for good.
    """
    num = settings.chain_num_questions if split == "train" else settings.chain_num_held_out
    rng = derive_rng(seed, "chain", split)
    lengths = range(settings.chain_min_terms, settings.chain_max_terms + 1)
    operators = sorted(set(settings.chain_operators))
    texts: dict[str, int] = {}
    while len(texts) < num:
        num_terms = lengths[len(texts) % len(lengths)]
        digits = rng.integers(10, size=num_terms)
        chosen = [operators[n] for n in rng.integers(len(operators), size=num_terms - 1)]
        text = str(digits[0]) + "".join(f"{op}{digit}" for op, digit in zip(chosen, digits[1:], strict=True)) + "="
        if text not in texts and split_of(text) == split:
            texts[text] = num_terms
    ordered = list(texts.items())
    return [
        ChainQuestion(id=text, prompt=text, answer=reference_response(text)[-1], num_terms=num_terms)
        for text, num_terms in (ordered[n] for n in rng.permutation(num))
    ]


def split_of(prompt: str) -> Split:
    """Return the side a question belongs to; a hash of its text decides."""
    first = hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0]
    return "held_out" if first % _HELD_OUT_IN == 0 else "train"


def reference_steps(prompt: str) -> list[str]:
    """Return the right steps of a question, `["3+7=0", "0-5=5"]`.

    Raises:
        DataError: where `prompt` is no question of the chain task.
    """
    if not _QUESTION.fullmatch(prompt):
        raise DataError("chain question", expected="a chain such as 3+7-5=", found=prompt, hint="see make_questions")
    value = int(prompt[0])
    steps = []
    for operator, digit in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        result = _OPERATIONS[operator](value, int(digit)) % 10
        steps.append(f"{value}{operator}{digit}={result}")
        value = result
    return steps


def reference_response(prompt: str) -> str:
    """Return the right response to a question, `3+7=0;0-5=5;#5`."""
    steps = reference_steps(prompt)
    return ";".join(steps) + f";#{steps[-1][-1]}"


def max_response_tokens(settings: ChainSettings) -> int:
    """Return a length limit that no well-formed response reaches: six characters a step, and some to spare."""
    return 6 * settings.chain_max_terms


def check_answer(prompt: str, response: str) -> bool:
    """Return whether the response ends in `#` and the right digit; how it got there does not count."""
    return response.endswith(f"#{reference_steps(prompt)[-1][-1]}")


def first_invalid_step(prompt: str, response: str) -> int | None:
    """Return the number of the first step that does not follow, counted from 0, or None where all do.

    A step follows if it takes the value so far, the question's operator and digit, and computes them rightly. A
    missing, superfluous or malformed step does not follow, and neither does a final digit other than the last value;
    the final `#` digit counts as the step after the last.
    """
    reference = reference_response(prompt).split(";")
    written = response.split(";")
    for number, step in enumerate(reference):
        # Up to here every step was right, so the right next step is the only one that follows.
        if number >= len(written) or written[number] != step:
            return number
    return None if len(written) == len(reference) else len(reference)


def is_valid(prompt: str, response: str) -> bool:
    """Return whether every step follows and the answer too: right for the right reason."""
    return first_invalid_step(prompt, response) is None


class ChainVerifier:
    """Right if the response ends in `#` and the right digit. The column `id` holds the question.

    `detail` says whether the reasoning of a right answer was valid: `valid` or `lucky`.
    """

    name = "chain"
    version = "1"
    bounded = True

    def judge(self, response: str, answer: str, columns: Mapping[str, Any]) -> Judgement:
        """Return the verdict (see `exgrpo.verify.Verifier`)."""
        found = _ANSWER.search(response)
        if found is None:
            return Judgement("unparsed", 0.0, None, "it does not end in # and a digit")
        if found.group(1) != answer:
            return Judgement("wrong", 0.0, found.group(1))
        return Judgement("correct", 1.0, found.group(1), "valid" if is_valid(columns["id"], response) else "lucky")

    def fault_of(self, answer: str, columns: Mapping[str, Any]) -> str | None:
        """Return why no response could be judged against this gold answer (see `exgrpo.verify.Verifier`)."""
        return None if re.fullmatch("[0-9]", answer) else "it is no digit"


def chain_reward(prompts: Sequence[str], completions: Sequence[str], **_: Any) -> list[float]:
    """Return 1.0 for each right answer and 0.0 for the others; a reward function as TRL calls it."""
    return [float(check_answer(prompt, text)) for prompt, text in zip(prompts, completions, strict=True)]


def chain_dataset(settings: ChainSettings, *, seed: int, split: Split) -> Dataset:
    """Return the questions as a data set with columns id, prompt, answer and num_terms."""
    from datasets import Dataset

    questions = make_questions(settings, seed=seed, split=split)
    return Dataset.from_list(
        [{"id": q.id, "prompt": q.prompt, "answer": q.answer, "num_terms": q.num_terms} for q in questions]
    )
