"""Ask, sample, judge, score; go on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exgrpo.evaluation.benchmarks import Benchmark, Suite
from exgrpo.evaluation.engines import Engine, Sampling
from exgrpo.evaluation.records import Record, append_records, cut_to, open_directory, read_records
from exgrpo.evaluation.summary import SuiteScores, score_benchmark, score_groups
from exgrpo.seeding import derive_rng
from exgrpo.tasks.questions import columns_of
from exgrpo.tasks.sources import Row
from exgrpo.verify import Judge, open_judge

# Responses that are generated between two writes; what a stop can lose.
ROWS_AT_ONCE = 256

Progress = Callable[[str, int, int], None]


def evaluate(
    writer: Engine,
    suite: Suite,
    directory: Path,
    *,
    model: str,
    engine: str = "transformers",
    limit: int | None = None,
    progress: Progress | None = None,
) -> SuiteScores:
    """Return the scores of a model on a suite; its responses lie in `directory` afterwards.

    A stopped evaluation goes on where it stopped when it is called again with the same directory, and comes to the same
    responses: the samples of a few questions depend on seed, benchmark and their place alone.

    Args:
        writer: writes the responses.
        suite: what is asked.
        directory: of this evaluation.
        model: what the model is called, for the record.
        engine: what the writer is called, for the record.
        limit: at most this many questions per benchmark, drawn by seed. Default: all.
        progress: called with (benchmark, responses done, responses in all).

    Raises:
        ConfigError: where `directory` holds another evaluation, or a benchmark cannot be asked.
        DataError: where questions cannot be read.
    """
    questions = {benchmark.name: _limited(benchmark, limit) for benchmark in suite.benchmarks}
    open_directory(
        directory,
        {
            "model": model,
            "engine": engine,
            "suite": suite.name,
            "version": suite.version,
            "limit": limit,
            "benchmarks": {benchmark.name: benchmark.as_dict() for benchmark in suite.benchmarks},
        },
    )
    scores = []
    for benchmark in suite.benchmarks:
        judge = open_benchmark_judge(benchmark)
        try:
            records = sample_benchmark(writer, benchmark, questions[benchmark.name], judge, directory, progress)
        finally:
            judge.close()
        scores.append(score_benchmark(benchmark, records, verifier=judge.id))
    return score_groups(suite, model, scores, {s.name: read_records(directory, s.name) for s in scores})


def open_benchmark_judge(benchmark: Benchmark) -> Judge:
    """Return what judges the answers of a benchmark; whoever opens it closes it."""
    own = benchmark.source if benchmark.source in ("chain", "gym") else "math"
    return open_judge(benchmark.verify, default=own)


def sample_benchmark(
    engine: Engine,
    benchmark: Benchmark,
    questions: Sequence[Row],
    judge: Judge,
    directory: Path,
    progress: Progress | None = None,
) -> list[Record]:
    """Return the judged responses of a benchmark, of which those on the disk are not written again."""
    k = benchmark.num_samples
    ordered = sorted(questions, key=lambda question: (len(str(question["prompt"])), question["id"]))
    size = max(1, ROWS_AT_ONCE // k)
    chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    records = read_records(directory, benchmark.name)
    done = 0
    for number, chunk in enumerate(chunks):
        if len(records) >= done + len(chunk) * k:
            done += len(chunk) * k
            continue
        cut_to(directory, benchmark.name, done)
        records = records[:done]
        new = _sample_chunk(engine, benchmark, chunk, judge, number)
        append_records(directory, benchmark.name, new)
        records += new
        done = len(records)
        if progress is not None:
            progress(benchmark.name, done, len(ordered) * k)
    return records


def _sample_chunk(
    engine: Engine, benchmark: Benchmark, questions: Sequence[Row], judge: Judge, number: int
) -> list[Record]:
    seed = int(derive_rng(benchmark.seed, "evaluation", benchmark.name, step=number).integers(2**31))
    sampling = Sampling(benchmark.num_samples, benchmark.max_new_tokens, seed, benchmark.temperature, benchmark.top_p)
    responses = engine.sample([question["prompt"] for question in questions], sampling)
    rows = [
        (question, sample, response)
        for question, answers in zip(questions, responses, strict=True)
        for sample, response in enumerate(answers)
    ]
    judgements = judge.judge(
        [response.text for _, _, response in rows],
        [question["answer"] for question, _, _ in rows],
        [columns_of(question) for question, _, _ in rows],
    )
    return [
        Record(
            question_id=question["id"],
            sample=sample,
            answer=question["answer"],
            response=response.text,
            num_tokens=response.num_tokens,
            truncated=response.truncated,
            verdict=judgement.verdict,
            extracted=judgement.extracted,
            detail=judgement.detail,
        )
        for (question, sample, response), judgement in zip(rows, judgements, strict=True)
    ]


def _limited(benchmark: Benchmark, limit: int | None) -> list[Any]:
    questions = benchmark.questions()
    if limit is None or limit >= len(questions):
        return questions
    rng = derive_rng(benchmark.seed, "evaluation", benchmark.name, "limit")
    return [questions[n] for n in sorted(rng.choice(len(questions), size=limit, replace=False))]
