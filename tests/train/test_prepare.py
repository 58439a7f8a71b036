"""What stops a run before it trains: questions that cannot be used, and a smoke rollout that says nothing."""

from __future__ import annotations

import json

import pytest

from exgrpo.cli.main import main

from .conftest import SMALL


@pytest.fixture
def config(tmp_path):
    """Write a configuration for arithmetic in a file of the user's."""

    def write(rows, **settings):
        data = tmp_path / "mine.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = {**SMALL, "output_dir": str(tmp_path / "run"), "model_name_or_path": "chain-base"}
        values |= {"data_train": str(data), "verify_with": "tests.train.test_prepare:last_digit", **settings}
        path = tmp_path / "mine.yaml"
        path.write_text(json.dumps(values))
        return str(path)

    return write


def last_digit(response, answer, **_):
    return response.endswith(f"#{answer}") if "#" in response else None


ROWS = [{"question": f"{n}+{m}=", "answer": str((n + m) % 10)} for n in range(6) for m in range(6)]


def test_data_check_prints_one_prompt_and_says_that_nothing_is_wrong(config, capsys):
    assert main(["data", "check", config(ROWS)]) == 0
    said = capsys.readouterr().out
    for words in ("36 rows, 36 distinct questions", "nothing is wrong", "| 0+0=", "> 0", "last_digit@1"):
        assert words in said


def test_data_check_reports_faults_and_fails(config, capsys):
    rows = [*ROWS, {"question": "1+1=", "answer": ""}]
    assert main(["data", "check", config(rows), "--json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert [(finding["kind"], finding["severity"]) for finding in report["findings"]] == [
        ("unverifiable_answer", "error")
    ]
    assert main(["data", "check", config(rows, data_bad_rows="drop"), "--json"]) == 0


def test_training_refuses_the_same_before_a_model_is_loaded(config, capsys, tmp_path):
    assert main(["train", config([*ROWS, {"question": "", "answer": "1"}], model_name_or_path="chain-base")]) == 1
    said = capsys.readouterr().err
    assert "empty_question" in said
    assert "row 36" in said
    assert not (tmp_path / "run").exists()


def test_validation_and_benchmarks_must_not_overlap_with_training(config, capsys, tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text(json.dumps(ROWS[3]) + "\n" + json.dumps({"question": "9+9=", "answer": "8"}) + "\n")
    for name, value in (("data_validation", str(held_out)), ("data_benchmarks", [str(held_out)])):
        assert main(["data", "check", config(ROWS, **{name: value})]) == 1
        assert "1 distinct questions also stand in" in capsys.readouterr().out


def test_a_run_on_questions_of_the_users_own_trains(config, tmp_path):
    assert main(["train", config(ROWS)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines][:3] == [1, 2, 3]


def test_a_smoke_rollout_in_which_everything_is_cut_stops_the_run(config, capsys, tmp_path):
    assert main(["train", config(ROWS, max_completion_length=3)]) == 1
    said = capsys.readouterr().err
    assert "all 16 were cut" in said
    assert "raise max_completion_length" in said
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_smoke_rollout_without_an_answer_stops_the_run(config, capsys):
    options = {"verify_with": "math", "verify_options": {"require_box": True}}
    assert main(["train", config(ROWS, **options)]) == 1
    said = capsys.readouterr().err
    assert "an answer in at least one response" in said
    assert "'unparsed': 16" in said
    assert main(["train", config(ROWS, **options, data_smoke_questions=0)]) == 0


def test_a_smoke_rollout_leaves_the_run_as_it_would_be_without(config, tmp_path):
    def losses(folder, **settings):
        assert main(["train", config(ROWS, output_dir=str(tmp_path / folder), **settings)]) == 0
        return (tmp_path / folder / "metrics.jsonl").read_text()

    assert losses("with") == losses("without", data_smoke_questions=0)
