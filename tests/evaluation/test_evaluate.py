"""An evaluation writes what it measures, goes on where it stopped, and says what it does not know."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.cli.main import main
from exgrpo.errors import ConfigError, DataError
from exgrpo.evaluation.benchmarks import Suite, load_suite
from exgrpo.evaluation.chain import chain_suite
from exgrpo.evaluation.compare import compare, compare_benchmark, sign_flip_p_value
from exgrpo.evaluation.engines import TransformersEngine
from exgrpo.evaluation.evaluate import evaluate
from exgrpo.evaluation.records import read_records, records_path
from exgrpo.seeding import derive_rng
from exgrpo.tasks.chain import ChainSettings
from exgrpo.tasks.gpqa import shuffled

from ..benchmark_files import benchmark_file

SUITE = chain_suite(ChainSettings(chain_num_held_out=150), seed=0, num_samples=4)


class CountingEngine(TransformersEngine):
    """The real engine, which counts its calls and may stop at one of them."""

    def __init__(self, *args, stop_at=None):
        super().__init__(*args)
        self.calls = 0
        self.stop_at = stop_at

    def sample(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return super().sample(*args, **kwargs)


@pytest.fixture(scope="module")
def policy():
    return AutoModelForCausalLM.from_pretrained(chain_base_path()), AutoTokenizer.from_pretrained(chain_base_path())


@pytest.fixture(scope="module")
def evaluated(policy, tmp_path_factory):
    directory = tmp_path_factory.mktemp("evaluated")
    scores = evaluate(TransformersEngine(*policy), SUITE, directory, model="base")
    scores.write(directory)
    return scores, directory


def test_records_hold_every_response_with_its_verdict(evaluated):
    _, directory = evaluated
    records = read_records(directory, "chain")
    assert len(records) == 600
    assert {record.verdict for record in records} <= {"correct", "wrong", "unparsed"}
    for record in records[:50]:
        assert record.correct == record.response.endswith(f"#{record.answer}")
        assert record.detail in (("valid", "lucky") if record.correct else ("", "it does not end in # and a digit"))


def test_a_stopped_evaluation_goes_on_and_comes_to_the_same(policy, evaluated, tmp_path):
    scores, directory = evaluated
    stopped = CountingEngine(*policy, stop_at=3)
    with pytest.raises(KeyboardInterrupt):
        evaluate(stopped, SUITE, tmp_path, model="base")
    # A crash in the middle of a write leaves a torn line.
    path = records_path(tmp_path, "chain")
    whole = path.read_bytes()
    assert whole.count(b"\n") == 512
    path.write_bytes(whole + b'{"question_id": "3+')
    resumed = CountingEngine(*policy)
    assert evaluate(resumed, SUITE, tmp_path, model="base") == scores
    assert resumed.calls == 1
    assert path.read_bytes() == records_path(directory, "chain").read_bytes()
    assert evaluate(CountingEngine(*policy, stop_at=1), SUITE, tmp_path, model="base") == scores


def test_a_half_written_batch_of_questions_is_asked_again(policy, evaluated, tmp_path):
    _, directory = evaluated
    evaluate(TransformersEngine(*policy), SUITE, tmp_path, model="base")
    path = records_path(tmp_path, "chain")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:300]))
    engine = CountingEngine(*policy)
    evaluate(engine, SUITE, tmp_path, model="base")
    assert engine.calls == 2
    assert path.read_bytes() == records_path(directory, "chain").read_bytes()


def test_another_evaluation_in_the_same_directory_is_refused(policy, evaluated):
    _, directory = evaluated
    for change in ({"temperature": 0.5}, {"seed": 1}, {"num_samples": 2}):
        other = dataclasses.replace(SUITE, benchmarks=(dataclasses.replace(SUITE.benchmarks[0], **change),))
        with pytest.raises(ConfigError, match="benchmarks"):
            evaluate(TransformersEngine(*policy), other, directory, model="base")
    with pytest.raises(ConfigError, match="model"):
        evaluate(TransformersEngine(*policy), SUITE, directory, model="another")


def test_a_damaged_record_is_refused_with_its_line(policy, tmp_path):
    evaluate(TransformersEngine(*policy), SUITE, tmp_path, model="base", limit=5)
    path = records_path(tmp_path, "chain")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"not json\n" + b"".join(lines[2:]))
    with pytest.raises(DataError, match="line 2"):
        evaluate(TransformersEngine(*policy), SUITE, tmp_path, model="base", limit=5)


def test_scores_are_those_of_the_records(evaluated):
    scores, directory = evaluated
    (chain,) = scores.benchmarks
    records = read_records(directory, "chain")
    correct = np.array([record.correct for record in records]).reshape(150, 4)
    assert chain.avg_at_k.value == pytest.approx(correct.mean())
    assert chain.avg_at_k.low < chain.avg_at_k.value < chain.avg_at_k.high
    assert chain.avg_at_k.n == 150
    assert sorted(chain.pass_at_k) == [1, 2, 4]
    assert chain.pass_at_k[1] == pytest.approx(correct.mean())
    assert chain.pass_at_k[4] == pytest.approx(correct.any(axis=1).mean())
    assert chain.pass_at_k[1] < chain.pass_at_k[2] < chain.pass_at_k[4]
    assert chain.mean_tokens == pytest.approx(np.mean([record.num_tokens for record in records]))
    assert chain.verifier == "chain@1"


def test_tables_are_written_and_what_is_undefined_is_null(policy, tmp_path):
    single = chain_suite(ChainSettings(chain_num_held_out=20), seed=0, num_samples=1)
    scores = evaluate(TransformersEngine(*policy), single, tmp_path, model="base")
    scores.write(tmp_path)
    written = json.loads((tmp_path / "scores.json").read_text())
    assert written["benchmarks"][0]["majority"] is None
    assert math.isnan(scores.benchmarks[0].majority)
    table = (tmp_path / "scores.md").read_text()
    assert "| chain | 20 | 1 |" in table
    assert str(scores.benchmarks[0].avg_at_k) in table


def test_groups_count_their_benchmarks_alike(policy, tmp_path):
    few, many = (
        chain_suite(
            ChainSettings(chain_num_held_out=num, chain_num_questions=1, chain_min_terms=terms, chain_max_terms=terms),
            seed=0,
        )
        for num, terms in ((10, 2), (40, 9))
    )
    benchmarks = (
        dataclasses.replace(few.benchmarks[0], name="few"),
        dataclasses.replace(many.benchmarks[0], name="many"),
    )
    suite = Suite("both", "1", benchmarks, {"all": ("few", "many")})
    scores = evaluate(TransformersEngine(*policy), suite, tmp_path, model="base")
    few_score, many_score = (score.avg_at_k.value for score in scores.benchmarks)
    assert few_score > many_score
    mean = scores.means["all"]
    assert mean.value == pytest.approx((few_score + many_score) / 2)
    assert mean.low < mean.value < mean.high
    assert scores.rows()[-1][:2] == ["mean of all", "50"]


def test_a_limit_draws_the_same_questions_for_every_model(policy, tmp_path):
    for name in ("a", "b"):
        evaluate(TransformersEngine(*policy), SUITE, tmp_path / name, model=name, limit=7)
    ids = [{record.question_id for record in read_records(tmp_path / name, "chain")} for name in ("a", "b")]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 7


# ---- suites ----------------------------------------------------------------------------------------------------------


def test_a_suite_that_is_written_is_read_back_as_it_was(tmp_path):
    SUITE.write(tmp_path / "chain.yaml")
    assert load_suite(str(tmp_path / "chain.yaml")) == SUITE


def test_the_papers_suite_has_its_nine_benchmarks_and_numbers_of_samples():
    suite = load_suite("all")
    samples = {benchmark.name: benchmark.num_samples for benchmark in suite.benchmarks}
    assert samples == {
        "aime24": 32,
        "aime25": 32,
        "amc": 32,
        "math500": 1,
        "minerva": 1,
        "olympiadbench": 1,
        "arc_c": 1,
        "gpqa_diamond": 1,
        "mmlu_pro": 1,
    }
    assert {(b.temperature, b.top_p, b.max_new_tokens) for b in suite.benchmarks} == {(0.6, 1.0, 8192)}
    assert {len(load_suite(name).benchmarks) for name in ("math", "general")} == {6, 3}
    assert load_suite("math", {"num_samples": 2, "temperature": None}).benchmarks[0].num_samples == 2


def test_a_data_file_is_a_suite_of_one(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"q": f"{n}+1=", "gold": str(n + 1), "kind": "odd" if n % 2 else "even"} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    given = {"data_question_column": "q", "data_answer_column": "gold", "verify_with": "numeric", "num_samples": 2}
    (benchmark,) = load_suite(str(path), given).benchmarks
    assert benchmark.name == "mine"
    assert len(benchmark.questions()) == 6  # a repeated row is one question
    (odd,) = load_suite(str(path), {**given, "only": {"kind": "odd"}}).benchmarks
    assert [question["prompt"] for question in odd.questions()] == ["1+1=", "3+1=", "5+1="]
    (none,) = load_suite(str(path), {**given, "only": {"kind": "prime"}}).benchmarks
    with pytest.raises(DataError, match="prime"):
        none.questions()


def test_the_authors_files_are_a_suite_by_their_column(tmp_path):
    source = benchmark_file("math_test.parquet")
    names = {"aime": 30, "aime25": 30, "amc": 83, "math": 500, "minerva": 272, "olympiad_bench": 675}
    entries = {name: {"source": source, "only": {"data_source": name}} for name in names}
    path = tmp_path / "files.yaml"
    path.write_text(yaml.safe_dump({"schema_version": 1, "benchmarks": entries}))
    suite = load_suite(str(path))
    assert {benchmark.name: len(benchmark.questions()) for benchmark in suite.benchmarks} == names


def test_gpqas_options_get_an_order_that_depends_on_the_question_alone():
    rows = [
        {
            "Question": f"q{n}\n",
            "Correct Answer": "right ",
            **{f"Incorrect Answer {m}": f"wrong {m}" for m in (1, 2, 3)},
        }
        for n in range(60)
    ]
    made = [shuffled(row) for row in rows]
    assert made == [shuffled(row) for row in reversed(rows)][::-1]
    assert {row["answer"] for row in made} == set("ABCD")
    for row in made:
        assert row["options"]["ABCD".index(row["answer"])] == "right"
        assert sorted(row["options"]) == ["right", "wrong 1", "wrong 2", "wrong 3"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- a\n", "schema_version"),
        ("a: [\n", "YAML"),
        ({"schema_version": 2, "benchmarks": {"a": {"source": "chain"}}}, "schema_version"),
        ({"schema_version": 1, "benchmarks": {"a": {"num_samples": 1}}}, "no source"),
        ({"schema_version": 1, "benchmarks": {"a": {"source": "chain", "sampels": 1}}}, "sampels"),
        ({"schema_version": 1, "benchmarks": {"a": {"source": "chain", "top_p": 0}}}, "top_p"),
        ({"schema_version": 1, "benchmarks": {"a": {"source": "chain", "num_samples": 0}}}, "num_samples"),
        ({"schema_version": 1, "benchmarks": {"a": {"source": "chain"}}, "groups": {"g": ["b"]}}, "groups"),
    ],
    ids=str,
)
def test_a_suite_file_that_cannot_work_is_refused(tmp_path, content, says):
    path = tmp_path / "suite.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"(?s)expected .*hint: ") as caught:
        load_suite(str(path))
    assert says in str(caught.value)


def test_an_unknown_suite_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match="math, general, all"):
        load_suite("maths")


# ---- comparisons -----------------------------------------------------------------------------------------------------


def samples(rng, rates, k=4):
    return {f"q{n}": rng.binomial(1, rate, size=k).astype(float).tolist() for n, rate in enumerate(rates)}


def test_a_real_difference_is_found_and_none_is_not():
    rng = derive_rng(0, "test")
    rates = rng.random(300) * 0.5
    a, b, c = samples(rng, rates), samples(rng, rates + 0.2), samples(rng, rates)
    better = compare_benchmark("x", a, b, seed=0)
    assert better.verdict == "B is better"
    assert better.p_value < 0.001
    assert better.difference.low < 0.2 < better.difference.high
    assert compare_benchmark("x", b, a, seed=0).verdict == "A is better"
    same = compare_benchmark("x", a, c, seed=0)
    assert same.verdict.startswith("no difference shown")
    assert same.p_value > 0.05
    assert compare_benchmark("x", a, a, seed=0).p_value == 1.0


def test_too_few_questions_are_said_plainly():
    a = {f"q{n}": [0.0] for n in range(30)}
    b = {**a, **{f"q{n}": [1.0] for n in range(4)}}
    said = compare_benchmark("x", a, b, seed=0)
    # Four questions differ, all one way: two of sixteen sign patterns are as extreme, p = 0.125 at best.
    assert said.p_value == pytest.approx(0.125, abs=0.02)
    assert said.verdict == "too few questions: they differ on 4, so that p cannot fall below 0.12"


def test_the_permutation_p_value_is_that_of_all_sign_patterns():
    differences = np.array([1.0, 0.5, 0.5, -0.25, 0.75, 0.0, 0.5])
    nonzero = differences[differences != 0]
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(nonzero))).reshape(len(nonzero), -1).T
    exact = np.mean(np.abs(signs @ nonzero) >= abs(nonzero.sum()) - 1e-12)
    assert sign_flip_p_value(differences, derive_rng(0, "p"), rounds=20_000) == pytest.approx(exact, abs=0.01)


def test_the_p_value_is_uniform_where_there_is_no_difference():
    rng = derive_rng(1, "null")
    values = [sign_flip_p_value(rng.normal(size=30), rng, rounds=400) for _ in range(300)]
    for level in (0.05, 0.25, 0.5):
        assert np.mean(np.array(values) <= level) == pytest.approx(level, abs=0.08)


def test_the_interval_covers_the_difference_as_often_as_it_says():
    rng = derive_rng(2, "cover")
    covered = 0
    for _ in range(60):
        rates = rng.random(40) * 0.6
        said = compare_benchmark("x", samples(rng, rates), samples(rng, rates + 0.2), seed=0)
        covered += said.difference.low <= 0.2 <= said.difference.high
    assert covered >= 52  # 57 expected; fewer than 52 of 60 has a chance below 2 % at 95 %


def test_evaluations_that_share_nothing_are_refused(evaluated, tmp_path):
    _, directory = evaluated
    with pytest.raises(DataError, match=r"evaluation\.json"):
        compare(directory, tmp_path)
    with pytest.raises(DataError, match="both evaluations answered"):
        compare_benchmark("x", {"a": [1.0]}, {"b": [1.0]}, seed=0)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_eval_reproduces_the_numbers_of_an_evaluation_and_compare_reads_both(evaluated, tmp_path, capsys):
    scores, directory = evaluated
    SUITE.write(tmp_path / "chain.yaml")
    words = ["eval", "chain-base", "--suite", str(tmp_path / "chain.yaml"), "--output_dir", str(tmp_path / "again")]
    assert main([*words, "--batch_size", "256", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["benchmarks"][0]["avg_at_k"]["value"] == scores.benchmarks[0].avg_at_k.value
    assert (
        main([*words[:4], "--seed", "1", "--output_dir", str(tmp_path / "other"), "--chain_num_held_out", "150"]) == 0
    )
    assert "avg@k" in capsys.readouterr().out
    assert main(["compare", str(directory), str(tmp_path / "again")]) == 0
    assert "chain: too few questions: they differ on 0" in capsys.readouterr().out
    assert main(["compare", str(directory), str(tmp_path / "other"), "--json"]) == 1
    assert "both evaluations answered" in capsys.readouterr().err


def test_eval_refuses_what_it_cannot_do(tmp_path, capsys):
    assert main(["eval", "no/such-model", "--suite", "math", "--output_dir", str(tmp_path / "x")]) == 1
    assert "no/such-model" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["eval", "chain-base", "--suite", "math", "--seed", "1", "stray"])
    assert "stray" in capsys.readouterr().err
