"""What can be wrong with questions is found before a model is loaded."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError, DataError
from exgrpo.tasks.check import chat_renderer, check_questions
from exgrpo.tasks.questions import load_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.verify import VerifySettings, open_judge

from ..benchmark_files import benchmark_file


@pytest.fixture(scope="module")
def judge():
    judge = open_judge(VerifySettings(verify_with="numeric", verify_workers=1))
    yield judge
    judge.close()


GOOD = [{"id": f"q{n}", "prompt": f"What is {n}+1?", "answer": str(n + 1)} for n in range(6)]


def check(questions, judge, **settings):
    return check_questions(
        questions,
        source="mine",
        judge=judge,
        render=str,
        count_tokens=lambda texts: [len(text.split()) for text in texts],
        **{"max_prompt_tokens": 10, **settings},
    )


def with_row(row, **changes):
    return [{**question, **changes} if n == row else question for n, question in enumerate(GOOD)]


def test_good_questions_pass(judge):
    checked = check(GOOD, judge)
    assert checked.questions == GOOD
    assert checked.report.findings == ()
    assert checked.report.num_questions == 6
    assert checked.report.prompt_tokens == (3, 3, 3)
    assert checked.report.example == "What is 0+1?"
    checked.report.require()


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"id": ""}, "missing_id", "row 2"),
        ({"prompt": " "}, "empty_question", "row 2"),
        ({"prompt": [{"role": "system", "content": "Think."}]}, "empty_question", "row 2"),
        ({"answer": ""}, "unverifiable_answer", "no answer"),
        ({"answer": "many"}, "unverifiable_answer", "'many': it is no number"),
        ({"prompt": "word " * 11}, "long_prompt", "11 tokens"),
    ],
)
def test_a_row_that_cannot_be_used_stops_a_run_or_is_left_out(judge, changes, kind, says):
    questions = with_row(2, **changes)
    report = check(questions, judge).report
    (finding,) = report.errors
    assert (finding.kind, finding.num_rows) == (kind, 1)
    assert says in finding.message
    with pytest.raises(DataError, match=f"(?s){kind}.*hint: .*data_bad_rows=drop"):
        report.require()
    dropped = check(questions, judge, drop_bad=True)
    assert len(dropped.questions) == 5
    assert dropped.report.errors == []
    assert dropped.report.findings[0].dropped


def test_an_id_of_two_questions_is_an_error_and_a_repeated_row_is_not(judge):
    report = check([*GOOD, {**GOOD[0], "answer": "7"}], judge, drop_bad=True).report
    assert [finding.kind for finding in report.errors] == ["duplicate_id"]
    report = check([*GOOD, GOOD[0], GOOD[1]], judge).report
    assert [(finding.kind, finding.severity, finding.num_rows) for finding in report.findings] == [
        ("repeated_row", "warning", 2)
    ]
    assert report.num_questions == 6


def test_questions_that_stand_elsewhere_too_are_an_error_whatever_their_spaces_and_case(judge):
    other = [{"id": "x", "prompt": "WHAT  is 3+1?\n", "answer": "4"}, {"id": "y", "prompt": "new", "answer": "1"}]
    for drop in (False, True):
        report = check(GOOD, judge, others={"the test set": other}, drop_bad=drop).report
        (finding,) = report.errors
        assert finding.kind == "overlap"
        assert "1 distinct questions also stand in the test set" in finding.message
        assert "row 3" in finding.message


def test_many_bad_rows_are_counted_and_a_few_are_shown(judge):
    report = check([{**question, "answer": "none"} for question in GOOD], judge).report
    assert report.errors[0].num_rows == 6
    assert "and 3 more" in report.errors[0].message


def test_nothing_at_all_is_refused(judge):
    with pytest.raises(DataError, match="at least one question"):
        check([], judge)


def test_messages_need_a_chat_template():
    tokenizer = AutoTokenizer.from_pretrained(chain_base_path())
    tokenizer.chat_template = None
    chat = [{"role": "user", "content": "1+1="}]
    with pytest.raises(ConfigError, match="steps"):
        chat_renderer(tokenizer)(chat)
    tokenizer.chat_template = "{{ messages[0].content }}{{ mark }}"
    assert chat_renderer(tokenizer, {"mark": "!"})(chat) == "1+1=!"


def test_the_published_validation_set_holds_every_test_question():
    # The trap of the paper's files: their validation set is the test set.
    settings = DataSettings()
    valid, test = (
        load_questions(benchmark_file(name), settings, split="train", seed=0)
        for name in ("math_valid.parquet", "math_test.parquet")
    )
    judge = open_judge(VerifySettings(verify_with="exact", verify_workers=1))
    report = check(valid, judge, others={"math_test": test}, max_prompt_tokens=10**6).report
    judge.close()
    overlap = next(finding for finding in report.errors if finding.kind == "overlap")
    assert "1590 distinct questions" in overlap.message
