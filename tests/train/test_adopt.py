"""A store of one run goes to another, without what the other could not replay."""

from __future__ import annotations

import json

import pytest

from exgrpo.cli.main import main
from exgrpo.experience import SQLiteStore
from exgrpo.tasks.chain import ChainSettings, make_questions

from .conftest import SMALL, read_metrics

CHAINS = ChainSettings(chain_min_terms=2, chain_max_terms=4, chain_num_questions=24, chain_num_held_out=8)


def last_digit(response, answer, **_):
    return response.endswith(f"#{answer}")


@pytest.fixture
def write(tmp_path):
    """Write questions and a configuration for them."""

    def write(name, questions, **settings):
        data = tmp_path / f"{name}.jsonl"
        rows = [{"key": q.id, "question": q.prompt, "answer": q.answer} for q in questions]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = {**SMALL, "output_dir": str(tmp_path / name), "model_name_or_path": "chain-base"}
        values |= {"data_train": str(data), "data_id_column": "key", "verify_with": "tests.train.test_adopt:last_digit"}
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps({**values, **settings}))
        return str(path)

    return write


def test_a_store_goes_to_a_run_with_other_questions(write, tmp_path, capsys):
    questions = make_questions(CHAINS, seed=0, split="train")
    assert main(["train", write("old", questions)]) == 0
    store = tmp_path / "old" / "experience.sqlite"
    new = write("new", questions[8:], experience_path=str(store), data_smoke_questions=0)
    capsys.readouterr()
    assert main(["train", new]) == 1
    assert "exgrpo experience adopt" in capsys.readouterr().err
    assert main(["experience", "adopt", str(store), "--config", new]) == 0
    said = capsys.readouterr().out
    assert "dataset: " in said
    assert "its question is not in the data set" in said
    opened = SQLiteStore(store, None, mode="ro")
    gone = {question.id for question in questions[:8]}
    for row in opened.trajectories():
        assert (row.usage.quarantined is not None) == (row.question_id in gone)
    opened.close()
    assert main(["train", new, "--max_steps", "3"]) == 0
    lines = [line for line in read_metrics(tmp_path / "new") if "experience/step" in line]
    assert sum(line["replay/questions"] for line in lines) > 0
    assert main(["experience", "adopt", str(store), "--config", new]) == 0
    assert "nothing differs" in capsys.readouterr().out


def test_what_is_asked_in_other_tokens_is_kept_from_replay(write, tmp_path, capsys):
    questions = make_questions(CHAINS, seed=0, split="train")
    assert main(["train", write("old", questions)]) == 0
    store = tmp_path / "old" / "experience.sqlite"
    template = tmp_path / "star.yaml"
    template.write_text("style: text\nuser: '*{question}'\n")
    new = write("new", questions, data_template=str(template))
    assert main(["experience", "adopt", str(store), "--config", new]) == 0
    said = capsys.readouterr().out
    assert "asked in other tokens" in said
    assert "\n0 trajectories can be replayed" in said


def test_another_group_size_cannot_be_adopted(write, tmp_path, capsys):
    questions = make_questions(CHAINS, seed=0, split="train")
    assert main(["train", write("old", questions, max_steps=1)]) == 0
    store = tmp_path / "old" / "experience.sqlite"
    new = write("new", questions, num_generations=8)
    assert main(["experience", "adopt", str(store), "--config", new]) == 1
    assert "begin with an empty experience" in capsys.readouterr().err
