"""The table of golden rows: (verifier, gold answer, response) -> verdict, by kind, and what kinds it must have."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from exgrpo.verify import VerifierPool, build_verifier

from ..benchmark_files import benchmark_file

ROWS = [json.loads(line) for line in Path(__file__).with_name("golden.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_verdicts_are_as_the_table_says(kind):
    wrong = []
    for row in ROWS:
        if row["kind"] == kind:
            verifier = build_verifier(row["verifier"], row["options"])
            said = verifier.judge(row["response"], row["gold"], {"id": "3+7-5="})
            if said.verdict != row["verdict"]:
                wrong.append((row["gold"], row["response"][:80], row["verdict"], said))
    assert not wrong


def test_the_table_has_enough_rows_of_each_verdict():
    assert len(ROWS) >= 200
    verdicts = Counter(row["verdict"] for row in ROWS)
    assert min(verdicts[name] for name in ("correct", "wrong", "unparsed")) >= 25


@pytest.mark.parametrize(
    ("met_in", "gold", "response", "verdict"),
    [
        # Each is a public report, in our words and numbers.
        ("Math-Verify 47: one root of two was taken for both", "-3, 3", "\\boxed{3}", "wrong"),
        ("Math-Verify 76: stars around a number", "73", "It comes to **73**", "correct"),
        ("verl PR 7274: only the tail of a response was read", "5", "\\boxed{5}" + " and so on" * 2000, "correct"),
        ("understand-r1-zero 21: a box cut by the length limit", "5", "so it is \\boxed{5", "unparsed"),
        ("an answer in the thoughts is no answer", "5", "<think>\\boxed{5}</think> I do not know", "unparsed"),
    ],
)
def test_public_reports_about_mathematics(met_in, gold, response, verdict):
    assert build_verifier("math").judge(response, gold, {}).verdict == verdict, met_in


@pytest.mark.parametrize(
    ("met_in", "gold", "response"),
    [
        ("Math-Verify 16: the letter inside text", "B", "\\boxed{\\text{B}}"),
        ("open-r1 56: letter and colon", "B", "Answer: B: it is heavier"),
        ("NeMo Gym PR 1844: brackets", "B", "The answer is (B)."),
        ("NeMo Skills PR 1526: letter and option in the box", "B", "\\boxed{B) 3 kg}"),
    ],
)
def test_public_reports_about_letters(met_in, gold, response):
    assert build_verifier("choice").judge(response, gold, {}).verdict == "correct", met_in


@pytest.mark.slow
def test_every_gold_answer_of_the_benchmarks_equals_itself_as_math_verify_finds_too():
    import pyarrow.parquet as pq
    from math_verify import parse, verify

    rows = pq.read_table(benchmark_file("math_test.parquet")).to_pylist()
    golds = sorted({row["reward_model"]["ground_truth"] for row in rows})
    boxed = [f"\\boxed{{{gold}}}" for gold in golds]
    with VerifierPool("math", timeout_s=30) as pool:
        ours = [judgement.verdict == "correct" for judgement in pool.judge(boxed, golds)]
        faults = pool.faults_of(golds)
    # Signals, as Math-Verify stops itself by, need the main thread: here they have it.
    theirs = [verify(parse(text), parse(text)) for text in boxed]
    assert len(golds) > 1000
    assert [gold for gold, a, b in zip(golds, ours, theirs, strict=True) if a != b] == []
    assert all(ours)
    # These are read as text alone: only an answer in the same letters can be right.
    assert [gold for gold, fault in zip(golds, faults, strict=True) if fault] == [
        "$m_{\\max }=n^{2}-n-1$",
        "$t(0,4]$",
        "-1./3",
        "-3./2",
        "E_{1},E_{2}",
        "\\frac{dM}{dt}=\\frac{10^{5} L_{\\odot}}{0.007 c^{2} M_{\\odot}^{6}} M^{6}",
        "np.arcsin(10/13)",
    ]
