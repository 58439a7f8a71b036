"""No answer can stop, slow or move others: hostile answers in real worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from exgrpo.errors import ConfigError, DataError
from exgrpo.verify import VerifierPool

CUSTOM = "tests.verify.custom_verifiers"


@pytest.fixture(scope="module")
def hostile():
    with VerifierPool(f"{CUSTOM}:hostile", timeout_s=1.0, memory_mb=1024) as pool:
        yield pool


@pytest.fixture(scope="module")
def mathematics():
    with VerifierPool("math", timeout_s=2.0) as pool:
        yield pool


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [("hang", "timed_out"), ("spin", "timed_out"), ("raise", "crashed"), ("die", "crashed"), ("eat", "crashed")],
)
def test_a_bad_answer_gets_its_verdict_and_moves_no_other(hostile, bad, verdict):
    responses = ["yes", "no", bad, "yes", "no", "yes"]
    said = hostile.judge(responses, ["yes"] * 6)
    assert [judgement.verdict for judgement in said] == ["correct", "wrong", verdict, "correct", "wrong", "correct"]


def test_many_bad_answers_at_once_leave_the_pool_in_order(hostile):
    kinds = {"yes": "correct", "no": "wrong", "raise": "crashed", "die": "crashed", "hang": "timed_out"}
    responses = [name for n in range(4) for name in ("yes", "die", "no", "raise")] + ["hang", "yes"]
    said = hostile.judge(responses, ["yes"] * len(responses))
    assert [judgement.verdict for judgement in said] == [kinds[response] for response in responses]
    assert all(judgement.detail for judgement in said if judgement.verdict in ("crashed", "timed_out"))


HOSTILE_MATHEMATICS = {
    "a tower of powers": "\\boxed{9^{9^{9^{9^{9}}}}}",
    "an expansion of gigabytes": "\\boxed{(x+1)^{10^{9}}-(x-1)^{10^9}}",
    "a factorial": "\\boxed{(10^{10})!}",
    "a sum without an end in sight": "\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k}}",
    "ten thousand nested brackets": "\\boxed{" + "(" * 10_000 + "1" + ")" * 10_000 + "}",
    "ten thousand open brackets": "\\boxed{" + "[" * 10_000 + "}",
    "ten thousand nested boxes": "\\boxed{" * 10_000 + "1" + "}" * 10_000,
    "unbalanced braces": "{" * 5_000 + "\\boxed{" * 5_000,
    "a megabyte of digits": "\\boxed{" + "7" * 10**6 + "}",
    "a megabyte of digits in words": "the answer is " + "7" * 10**6,
    "a megabyte of text": "so we see " * 100_000,
    "null bytes": "\\boxed{\x00\x00}\x00",
    "bidirectional text": "\\boxed{\u202e31\u202c\u2066}",
    "a macro that calls itself": "\\def\\a{\\a\\a}\\boxed{\\a}",
    "ten thousand empty boxes": "\\boxed{}" * 10_000,
    "ten thousand boxes": "\\boxed{1}" * 10_000,
    "a hundred thousand dollars": "$" * 100_000,
    "a fraction in a fraction in a fraction": "\\boxed{" + "\\frac{1}{1+" * 60 + "1" + "}" * 60 + "}",
}


def test_hostile_mathematics_gets_verdicts_within_the_limit_and_right_answers_stay_right(mathematics):
    responses = [text for hostile in HOSTILE_MATHEMATICS.values() for text in ("\\boxed{42}", hostile)]
    said = mathematics.judge(responses, ["42"] * len(responses))
    assert [judgement.verdict for judgement in said[::2]] == ["correct"] * len(HOSTILE_MATHEMATICS)
    verdicts = dict(zip(HOSTILE_MATHEMATICS, (judgement.verdict for judgement in said[1::2]), strict=True))
    assert "correct" not in verdicts.values()
    assert verdicts["a tower of powers"] in ("timed_out", "crashed")
    assert verdicts["a megabyte of digits"] == verdicts["ten thousand empty boxes"] == "unparsed"


def test_gold_answers_that_cannot_be_read_are_faults_and_not_the_end(mathematics, hostile):
    said = mathematics.faults_of(["42", "\\sqrt{", "", "\\text{even}", "{{{"])
    assert [fault is None for fault in said] == [True, False, False, True, False]
    assert all("no expression" in fault for fault in said if fault)
    good, hanging, dying, raising = hostile.faults_of(["good", "hang", "die", "raise"])
    assert good is None
    assert "1 s" in hanging
    assert "worker" in dying
    assert "KeyError" in raising


def test_a_custom_function_gets_columns_and_may_answer_in_each_of_its_ways():
    with VerifierPool(f"{CUSTOM}:by_length", num_workers=1) as pool:
        assert pool.id == f"{CUSTOM}:by_length@3"
        said = pool.judge(["abc", "abc"], ["3", "1"], [{}, {"extra": 2}])
        assert [judgement.verdict for judgement in said] == ["correct", "correct"]
    with VerifierPool(f"{CUSTOM}:graded", {"threshold": 0.5}, num_workers=1) as pool:
        said = pool.judge(["0.4", "0.5", "nan", "x"], [""] * 4)
        assert [judgement.verdict for judgement in said] == ["wrong", "correct", "crashed", "crashed"]
        assert [judgement.score for judgement in said] == [0.4, 0.5, 0.0, 0.0]
    with VerifierPool(f"{CUSTOM}:whole", num_workers=1) as pool:
        assert pool.judge(["a"], ["b"])[0].detail == "said so"
    with VerifierPool(f"{CUSTOM}:nothing", num_workers=1) as pool:
        assert pool.judge(["a"], ["b"])[0].verdict == "unparsed"


def test_what_cannot_work_is_refused_when_the_pool_is_made():
    for name, says in [
        ("maths", "math, choice"),
        (f"{CUSTOM}:missing", "AttributeError"),
        ("no_such_module_at_all:f", "ModuleNotFoundError"),
        (f"{CUSTOM}:not_callable", "int"),
    ]:
        with pytest.raises(ConfigError, match=r"(?s)expected .*hint: ") as caught:
            VerifierPool(name)
        assert says in str(caught.value)
    with pytest.raises(ConfigError, match="require_think"):
        VerifierPool("math", {"required": True})


def test_lists_of_different_lengths_are_refused(hostile):
    with pytest.raises(DataError, match="2 responses, 1 answers"):
        hostile.judge(["a", "b"], ["a"])


def test_workers_that_cannot_start_are_one_error_and_no_hang():
    with pytest.raises(ConfigError, match=r"(?s)worker processes that start.*verify_memory_mb"):
        VerifierPool("math", memory_mb=1)


def run_script(tmp_path, body, *, interrupt=False):
    """Run a script that is not guarded by __main__, and return (exit status, what it printed)."""
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    command = [sys.executable, str(path)]
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if interrupt and line.startswith("judging"):
                time.sleep(0.5)
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
        return process.wait(timeout=60), "".join(lines)


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    status, said = run_script(
        tmp_path,
        """
        from exgrpo.verify import VerifierPool
        print("here", flush=True)
        with VerifierPool("math") as pool:
            print([judgement.verdict for judgement in pool.judge(["\\\\boxed{1}"], ["1"])], flush=True)
        print(__file__.endswith("script.py"))
        """,
    )
    assert (status, said) == (0, "here\n['correct']\nTrue\n")


def test_ctrl_c_ends_everything_at_once(tmp_path):
    began = time.monotonic()
    status, said = run_script(
        tmp_path,
        """
        import multiprocessing
        from exgrpo.verify import VerifierPool
        pool = VerifierPool("math", timeout_s=300)
        try:
            print("judging", flush=True)
            pool.judge(["\\\\boxed{9^{9^{9^{9^{9}}}}}"] * 4, ["1"] * 4)
        except KeyboardInterrupt:
            pool.close()
            print("children", len(multiprocessing.active_children()), flush=True)
        """,
        interrupt=True,
    )
    assert status == 0
    assert said == "judging\nchildren 0\n"
    assert time.monotonic() - began < 60  # the answers would take for ever
