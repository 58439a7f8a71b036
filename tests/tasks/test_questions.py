"""Questions from every kind of source come out in one form, and what is wrong is said with its place."""

from __future__ import annotations

import csv
import json

import pytest
from datasets import Dataset

from exgrpo.errors import ConfigError, DataError
from exgrpo.tasks.questions import columns_of, load_questions, to_dataset
from exgrpo.tasks.settings import DataSettings

from ..benchmark_files import benchmark_file

ROWS = [{"question": f"What is {n}+{n}?", "answer": str(2 * n), "level": n, "key": f"k{n}"} for n in range(5)]


def load(source, split="train", **settings):
    return load_questions(str(source), DataSettings(**settings), split=split, seed=0)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows):
    Dataset.from_list(rows).to_parquet(str(path))
    return path


def make_rows(*, split, seed):
    return [{"prompt": f"{split} {seed} {n}", "answer": n} for n in range(3)]


@pytest.mark.parametrize(
    ("write", "name"), [(write_jsonl, "a.jsonl"), (write_csv, "a.csv"), (write_parquet, "a.parquet")]
)
def test_files_of_each_kind_give_the_same_questions(tmp_path, write, name):
    questions = load(write(tmp_path / name, ROWS), data_id_column="key", data_extra_columns=["level"])
    assert [question["id"] for question in questions] == ["k0", "k1", "k2", "k3", "k4"]
    assert [question["prompt"] for question in questions] == [row["question"] for row in ROWS]
    assert [question["answer"] for question in questions] == ["0", "2", "4", "6", "8"]
    assert str(columns_of(questions[3])["level"]) == "3"
    assert to_dataset(questions).column_names == ["id", "prompt", "answer", "level"]


def test_answers_in_csv_keep_their_letters(tmp_path):
    rows = [{"question": "q", "answer": answer} for answer in ("007", "1.50", "1e3", "NA", "  a, b ")]
    assert [q["answer"] for q in load(write_csv(tmp_path / "a.csv", rows))] == ["007", "1.50", "1e3", "NA", "a, b"]


def test_a_folder_or_an_id_that_datasets_can_load(tmp_path):
    for split in ("train", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", [{**row, "answer": split} for row in ROWS])
    assert {question["answer"] for question in load(tmp_path)} == {"train"}
    assert {question["answer"] for question in load(tmp_path, split="held_out")} == {"test"}
    with pytest.raises(DataError, match="data_name"):
        load(tmp_path, data_split="no such split")
    with pytest.raises(DataError, match="data set nobody/nothing"):
        load("nobody/nothing")


def test_a_function_of_the_users():
    questions = load("tests.tasks.test_questions:make_rows", split="held_out")
    assert questions[1]["prompt"] == "held_out 0 1"
    assert questions[1]["answer"] == "1"
    with pytest.raises(ConfigError, match="AttributeError"):
        load("tests.tasks.test_questions:no_such_function")


def test_verls_form_is_read_as_it_is(tmp_path):
    prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1+1?"}]
    row = {"data_source": "mine", "prompt": prompt, "reward_model": {"ground_truth": "2", "style": "rule"}}
    (question,) = load(write_parquet(tmp_path / "a.parquet", [row]))
    assert question["prompt"] == prompt
    assert question["answer"] == "2"
    assert question["data_source"] == "mine"


def test_the_real_benchmark_files_are_read():
    questions = load(benchmark_file("math_test.parquet"))
    assert len(questions) == 6023
    assert len({question["id"] for question in questions}) == 1590
    assert {question["data_source"] for question in questions} >= {"aime", "aime25", "amc", "math"}
    assert {question["answer"] for question in load(benchmark_file("arc_c.parquet"))} == set("ABCD1234")


def test_answers_after_a_mark_and_options_of_a_multiple_choice(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "q", "answer": "He has 3 and 4. #### 7"}])
    assert load(path, data_answer_after="####")[0]["answer"] == "7"
    options = {"text": ["red", "blue"], "label": ["1", "2"]}
    path = write_jsonl(tmp_path / "b.jsonl", [{"question": "Which?", "choices": options, "answer": "2"}])
    (question,) = load(path, data_options_column="choices")
    assert question["prompt"] == "Which?\n\nA) red\nB) blue"
    assert question["answer"] == "B"
    path = write_jsonl(tmp_path / "c.jsonl", [{"question": "Which?", "choices": ["red", "blue"], "answer": 1}])
    assert load(path, data_options_column="choices")[0]["answer"] == "B"


def test_system_prompts_and_templates(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "1+1?", "answer": "2", "system": "Be brief."}])
    assert load(path, data_system_column="system")[0]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1?"},
    ]
    assert "{question}" not in load(path, data_template="steps")[0]["prompt"]
    with pytest.raises(ConfigError, match="plain text"):
        load(path, data_system_column="system", data_template="steps")


def test_prompts_that_the_data_brings_are_kept_and_no_template_goes_over_them(tmp_path):
    row = {"prompt": [{"role": "user", "content": "q"}], "answer": "a"}
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    with pytest.raises(DataError, match="own prompts are kept"):
        load(path, data_template="think")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"question": "q", "answer": "a"}\n{"question": \n', "line 2"),
        ('["q"]\n', "line 1"),
        ("", "at least one row"),
        ('{"text": "q", "answer": "a"}\n', "data_question_column"),
        ('{"question": "q", "label": "a"}\n', "data_answer_column"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_place(tmp_path, content, says):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"(?s)expected .*hint: ") as caught:
        load(path)
    assert says in str(caught.value)


def test_a_csv_with_loose_commas_and_a_broken_parquet_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("question,answer\nq,a,b\n")
    with pytest.raises(DataError, match="row 2"):
        load(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="parquet"):
        load(tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="check the path"):
        load(tmp_path / "missing.parquet")


def test_columns_that_do_not_exist_are_named(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ROWS)
    for name in ("data_question_column", "data_answer_column", "data_id_column", "data_options_column"):
        with pytest.raises(DataError, match=r"'no\.where'"):
            load(path, **{name: "no.where"})
    with pytest.raises(DataError, match="'missing'"):
        load(path, data_extra_columns=["missing"])


def test_settings_that_cannot_work_are_refused():
    for settings in (
        {"data_num_questions": 0},
        {"data_smoke_questions": -1},
        {"data_bad_rows": "ignore"},
        {"data_gym": "{}"},
        {"data_gym": "no json"},
    ):
        with pytest.raises(ConfigError, match=r"(?s)expected .*hint: ") as caught:
            DataSettings(**settings)
        assert caught.value.where in settings
