"""Templates say what they ask for, and leave the question's own braces alone."""

from __future__ import annotations

import pytest

from exgrpo.errors import ConfigError
from exgrpo.tasks.prompts import TEMPLATES, find_template, lettered, question_text


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_asks_the_question_as_it_stands(name):
    question = "Find {x} with \\frac{1}{2} and {question}."
    prompt = find_template(name).render(question)
    assert question.replace("{question}", "") in question_text(prompt).replace("{question}", "")
    assert (find_template(name).style == "text") == isinstance(prompt, str)


def test_what_a_template_promises_stands_in_its_words():
    for template in TEMPLATES.values():
        words = template.user + (template.system or "")
        assert template.boxed == ("\\boxed{}" in words)
        assert template.thinks == ("</think>" in words)


def test_a_template_from_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("style: chat\nuser: 'Q: {question}'\nsystem: Be brief.\nboxed: true\n")
    template = find_template(str(path))
    assert template.name == "mine"
    assert template.boxed
    assert template.render("1+1")[-1]["content"] == "Q: 1+1"


@pytest.mark.parametrize(
    "content",
    ["style: song\nuser: '{question}'", "style: chat\nuser: no place", "style: chat\nwords: x", "- a", "a: ["],
)
def test_a_file_that_is_no_template_is_refused(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"(?s)style.*hint: "):
        find_template(str(path))


def test_an_unknown_template_is_answered_with_the_names():
    with pytest.raises(ConfigError, match="think, steps, boxed"):
        find_template("thinking")


def test_the_question_of_a_chat_is_its_last_user_message():
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert question_text(chat) == "c"
    assert question_text([{"role": "system", "content": "s"}]) == ""
    assert lettered(["x", "y"]) == "A) x\nB) y"
