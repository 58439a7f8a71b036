"""What verification costs: the pool against Math-Verify alone, its overhead an answer, and an answer that hangs.

    python benchmarks/verify.py [--json] [--golds math_test.parquet]

Answers are made from gold answers: as they are, changed, or with words and thoughts around them. With
`--golds` they come from a file in verl's form; without, from the golden table of the tests. Serial Math-Verify and the
pool judge the same answers in turn, in one process; medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from math_verify import parse, verify

from exgrpo.seeding import derive_rng
from exgrpo.tasks.questions import load_questions
from exgrpo.tasks.settings import DataSettings
from exgrpo.verify import VerifierPool

NUM_ANSWERS = 2000
WORKERS = 2
LIMIT_S = 3.0
TABLE = Path(__file__).parents[1] / "tests" / "verify" / "golden.jsonl"


def golds(path: str | None) -> list[str]:
    """Gold answers, each once."""
    if path is not None:
        rows = load_questions(path, DataSettings(), split="train", seed=0)
        return sorted({row["answer"].strip("$. ") for row in rows})
    table = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
    return sorted({row["gold"] for row in table if row["verifier"] == "math"})


def responses_to(gold: str, rng: np.random.Generator) -> str:
    """A response as a policy might write it; a third of them are wrong."""
    words = "We rewrite the expression and simplify it step by step. " * int(rng.integers(1, 40))
    variants = [
        f"{words}So the answer is $\\boxed{{{gold}}}$.",
        f"<think>{words}Perhaps \\boxed{{0}}.</think>{words}\\boxed{{ {gold} }}",
        f"{words}\\[ \\boxed{{\\displaystyle {gold}}} \\]",
        f"{words}So the answer is $\\boxed{{{gold}+1}}$.",
        f"{words}Therefore \\boxed{{{int(rng.integers(100))}}}",
        f"{words}The answer is ${gold}$.",
    ]
    return variants[int(rng.integers(len(variants)))]


def seconds(action: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def serial(responses: list[str], answers: list[str]) -> list[bool]:
    """Math-Verify as its readme uses it, its signals off."""
    return [
        verify(
            parse(f"\\boxed{{{answer}}}", parsing_timeout=None),
            parse(response.rpartition("</think>")[2], parsing_timeout=None),
            timeout_seconds=None,
        )
        for response, answer in zip(responses, answers, strict=True)
    ]


def against_serial(path: str | None, rounds: int) -> dict[str, float]:
    """The pool against serial Math-Verify on the same answers, every round with new ones, so that no cache helps."""
    ratios, agreed = [], []
    known = golds(path)
    with VerifierPool("math", num_workers=WORKERS) as pool:
        for number in range(rounds):
            rng = derive_rng(0, "benchmark", step=number)
            answers = [known[n] for n in rng.integers(len(known), size=NUM_ANSWERS)]
            responses = [responses_to(answer, rng) for answer in answers]
            said: dict[str, list[bool]] = {}
            alone = seconds(lambda a=answers, r=responses, s=said: s.update(serial=serial(r, a)))
            pooled = seconds(
                lambda a=answers, r=responses, s=said: s.update(pool=[j.verdict == "correct" for j in pool.judge(r, a)])
            )
            ratios.append(alone / pooled)
            agreed.append(float(np.mean(np.array(said["serial"]) == np.array(said["pool"]))))
    return {
        "serial Math-Verify / pool": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "same verdict as serial, share": min(agreed),
    }


def overhead(rounds: int) -> dict[str, float]:
    """What the pool adds to an answer that takes no time to judge."""
    responses = ["The answer is 5." + " and so on" * 300] * NUM_ANSWERS
    with VerifierPool("numeric", num_workers=WORKERS) as pool:
        pool.judge(responses, ["5"] * NUM_ANSWERS)
        times = [seconds(lambda: pool.judge(responses, ["5"] * NUM_ANSWERS)) for _ in range(rounds)]
    return {"overhead an answer, ms": statistics.median(times) / NUM_ANSWERS * 1000}


def hanging(rounds: int) -> dict[str, float]:
    """What one hanging answer among a batch adds, in limits."""
    good, bad = ["\\boxed{5}"] * 200, "\\boxed{9^{9^{9^{9^{9}}}}}"
    with VerifierPool("math", num_workers=WORKERS, timeout_s=LIMIT_S) as pool:
        pool.judge(good, ["5"] * 200)
        added = []
        for _ in range(rounds):
            alone = seconds(lambda: pool.judge(good, ["5"] * 200))
            both = seconds(lambda: pool.judge([*good[:100], bad, *good[100:]], ["5"] * 201))
            added.append((both - alone) / LIMIT_S)
    return {"delay by a hanging answer, in limits": statistics.median(added), "largest": max(added)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--golds", help="parquet file in verl's form")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    figures = against_serial(arguments.golds, arguments.rounds) | overhead(arguments.rounds) | hanging(arguments.rounds)
    if arguments.json:
        print(json.dumps(figures, indent=2))
    else:
        for name, value in figures.items():
            print(f"{name:44}{value:10.3f}")


if __name__ == "__main__":
    main()
