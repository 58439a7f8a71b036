"""A stored success judged again with today's verifier."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from exgrpo.errors import ConfigError
from exgrpo.experience import SQLiteStore
from exgrpo.tasks.questions import columns_of, load_questions
from exgrpo.train.prepare import load_tokenizer, open_run_judge
from exgrpo.train.run_config import load_config
from exgrpo.types import Experience, Usage

CHUNK = 500
QUARANTINE_REASON = "fails verification"


@dataclass(frozen=True, slots=True)
class Failure:
    """A stored success that today's verifier does not find right.

    Attributes:
        id: experience id.
        question_id: its question.
        verdict: today's.
        extracted: the answer found today.
        answer: the gold answer.
    """

    id: str
    question_id: str
    verdict: str
    extracted: str | None
    answer: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What judging a store again came to.

    Attributes:
        verifier_then: verifiers that judged at collection -> how many successes.
        verifier_now: today's.
        verdicts: today's verdicts -> how many.
        unknown: successes whose question the data set does not hold; they were not judged.
        failures: those that are not right today.
        quarantined: how many of these were taken from replay now.
    """

    verifier_then: dict[str, int]
    verifier_now: str
    verdicts: dict[str, int]
    unknown: int
    failures: tuple[Failure, ...]
    quarantined: int

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return dataclasses.asdict(self)

    def as_text(self) -> str:
        """Return the outcome for a person."""
        then = ", ".join(f"{name} ({count})" for name, count in self.verifier_then.items()) or "nobody"
        lines = [
            f"judged at collection by {then}, today by {self.verifier_now}",
            *(f"  {verdict:10} {count}" for verdict, count in self.verdicts.items()),
        ]
        if self.unknown:
            lines.append(f"  not judged {self.unknown}: the data set does not hold their question")
        lines += [
            f"{failure.id}  {failure.verdict}: found {failure.extracted!r}, gold {failure.answer!r}"
            for failure in self.failures
        ]
        if self.failures:
            hint = "" if self.quarantined else "; --quarantine keeps them from replay"
            lines.append(f"{len(self.failures)} fail, {self.quarantined} newly quarantined{hint}")
        return "\n".join(lines)


def verify_store(
    store: Path, config: Path | None, overrides: Sequence[str] = (), *, quarantine: bool = False
) -> Verification:
    """Return which stored successes today's verifier finds right, removed ones included.

    Args:
        store: the database.
        config: configuration with the questions, the tokenizer and the verifier. Default: config.yaml beside the store.
        overrides: command-line words that win over it.
        quarantine: whether those that fail are kept from replay from now on. Nothing is deleted.

    Raises:
        ConfigError: where there is no configuration.
        StoreError: where the store cannot be opened, or is owned by a run and `quarantine` wants to write.
    """
    path = config or store.parent / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            "configuration", expected="the run's config.yaml", found=f"no {path}", hint="name it with --config"
        )
    run = load_config(path, overrides)
    tokenizer = load_tokenizer(run)
    questions = {
        question["id"]: question
        for question in load_questions(
            run.data.data_train, run.data, split="train", seed=run.training.seed, chain=run.chain
        )
    }
    judge = open_run_judge(run)
    opened = SQLiteStore(store, None, mode="rw" if quarantine else "ro")
    try:
        rows = list(opened.trajectories())
        usages = {row.id: row.usage for row in rows}
        then: Counter[str] = Counter()
        now: Counter[str] = Counter()
        unknown = 0
        failures: list[Failure] = []
        for batch in _shown(_chunks([row.id for row in rows]), len(rows)):
            experiences = opened.load(batch)
            then.update(experience.verifier for experience in experiences)
            known = [experience for experience in experiences if experience.question_id in questions]
            unknown += len(experiences) - len(known)
            asked = [questions[experience.question_id] for experience in known]
            judgements = judge.judge(
                _texts(tokenizer, known),
                [question["answer"] for question in asked],
                [columns_of(question) for question in asked],
            )
            now.update(judgement.verdict for judgement in judgements)
            failures += [
                Failure(e.id, e.question_id, judgement.verdict, judgement.extracted, question["answer"])
                for e, question, judgement in zip(known, asked, judgements, strict=True)
                if judgement.verdict != "correct"
            ]
        taken = _quarantine(opened, usages, failures) if quarantine else 0
        return Verification(dict(then), judge.id, dict(now), unknown, tuple(failures), taken)
    finally:
        opened.close()
        judge.close()


def _texts(tokenizer: Any, experiences: Sequence[Experience]) -> list[str]:
    ids = [experience.response_ids.tolist() for experience in experiences]
    texts: list[str] = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return texts


def _quarantine(store: SQLiteStore, usages: dict[str, Usage], failures: Sequence[Failure]) -> int:
    new = {
        failure.id: dataclasses.replace(usages[failure.id], quarantined=QUARANTINE_REASON)
        for failure in failures
        if usages[failure.id].quarantined is None
    }
    if new:
        store.amend(new)
    return len(new)


def _chunks(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), CHUNK):
        yield list(ids[start : start + CHUNK])


def _shown(chunks: Iterator[list[str]], num: int) -> Iterator[list[str]]:
    total = -(-num // CHUNK)
    hidden = not sys.stderr.isatty()
    yield from track(chunks, "verifying", total=total, console=Console(stderr=True), disable=hidden)
