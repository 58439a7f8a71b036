"""The one facade a trainer talks to: propose, choose, commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from exgrpo.errors import DataError
from exgrpo.experience.buckets import allocate, bucket_log_weights, bucket_probabilities
from exgrpo.experience.codec import LogProbDtype
from exgrpo.experience.commit import changes_of_step
from exgrpo.experience.index import ExperienceIndex
from exgrpo.experience.selection import choose_trajectory
from exgrpo.experience.settings import ReplaySettings
from exgrpo.experience.sqlite import SQLiteStore
from exgrpo.experience.start import initial_state
from exgrpo.experience.store import ExperienceStore, MemoryStore, StoreIdentity, check_next_step
from exgrpo.seeding import derive_rng
from exgrpo.types import (
    CommitReport,
    Experience,
    Group,
    Proposal,
    ProposedQuestion,
    QuestionState,
    Replay,
    ReplayPlan,
    ReplayStatus,
    StartState,
    Usage,
)


class ExperienceReplay:
    """What a policy's past successes are kept in and replayed from (ExGRPO, arXiv 2510.02245, section 3).

    A step goes through `propose` (which questions), `choose` (which trajectory of each) and `commit` (what the step
    taught us). Only `commit` changes anything, and it changes all or nothing.

    Args:
        settings: the rules.
        store: where experience lives; closed with the facade.
        seed: of every draw. The draw of a step depends on (seed, step, what is stored) and on nothing else.

    Raises:
        StoreMismatchError: where the store was made with another number of rollouts.
    """

    def __init__(self, settings: ReplaySettings, store: ExperienceStore, *, seed: int):
        replace(store.identity, num_rollouts=settings.num_rollouts).check(store.identity, "experience store")
        self.settings = settings
        self._store = store
        self._seed = seed
        self._log_weights = bucket_log_weights(settings)
        self._index = ExperienceIndex.of(store)

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        settings: ReplaySettings,
        *,
        identity: StoreIdentity,
        seed: int,
        log_prob_dtype: LogProbDtype = "float32",
    ) -> ExperienceReplay:
        """Return the experience in a file, made where there is none; without a path it lives in memory.

        Args:
            path: SQLite file, or None.
            settings: the rules.
            identity: what the run has and the store must have been made with.
            seed: of every draw.
            log_prob_dtype: precision of log-probs in a new file.

        Raises:
            StoreError: where the file cannot be used (see `SQLiteStore`).
        """
        if path is None:
            return cls(settings, MemoryStore(identity), seed=seed)
        store = SQLiteStore(path, identity, log_prob_dtype=log_prob_dtype)
        try:
            return cls(settings, store, seed=seed)
        except BaseException:
            store.close()
            raise

    # ---- a step ------------------------------------------------------------------------------------------------------

    def propose(self, step: int, num_questions: int) -> Proposal:
        """Return the questions to replay in a step, with their candidates: floor(replay_ratio Q), or what there is.

        Buckets are drawn by one multinomial with Gaussian weights, questions of a bucket uniformly without replacement
        (section 3.2). Before the start there are none.

        Args:
            step: the step to plan, after the last committed one.
            num_questions: Q, all questions of the batch.

        Raises:
            StepOrderError: where that step is committed already.
        """
        check_next_step(self._store.step, step, "proposal")
        # Without the nudge 0.3 x 10 would round down to 2.
        requested = int(self.settings.replay_ratio * num_questions + 1e-9) if self._start.started else 0
        rng = derive_rng(self._seed, "replay", "questions", step=step)
        draw = self._draw_uniform if self.settings.question_sampling == "uniform" else self._draw_by_bucket
        questions = tuple(
            self._proposed(slot, bucket, probability) for slot, bucket, probability in draw(requested, rng)
        )
        return Proposal(step, requested, questions)

    def load(self, ids: Sequence[str]) -> list[Experience]:
        """Return experiences with payload, in the order asked for.

        Raises:
            StoreError: for an unknown id.
        """
        return self._store.load(ids)

    def choose(self, proposal: Proposal, entropies: Mapping[str, float]) -> ReplayPlan:
        """Return the plan: for each proposed question one trajectory, by `settings.trajectory_selection`.

        Args:
            proposal: from `propose`.
            entropies: experience id -> uncertainty of the current policy (nats) for every candidate. The rules `random`
                and `latest` do without.

        Raises:
            DataError: where a rule needs an uncertainty that is missing or NaN.
        """
        rng = derive_rng(self._seed, "replay", "trajectories", step=proposal.step)
        rule = self.settings.trajectory_selection
        chosen = [choose_trajectory(question.candidates, entropies, rule, rng) for question in proposal.questions]
        experiences = self._store.load([candidate.id for candidate in chosen])
        replays = tuple(
            Replay(
                experience=experience,
                bucket=question.bucket,
                probability=question.probability,
                entropy=entropies.get(candidate.id, candidate.entropy),
                uses=candidate.uses,
            )
            for question, candidate, experience in zip(proposal.questions, chosen, experiences, strict=True)
        )
        return ReplayPlan(proposal.step, proposal.requested, replays, dict(entropies))

    def commit(self, step: int, groups: Sequence[Group], plan: ReplayPlan) -> CommitReport:
        """Write down what a step taught us, all or nothing, and return the counts (rules: `changes_of_step`).

        Args:
            step: the step, the plan's own.
            groups: the batch, each question once, replayed questions with their `replayed_id`.
            plan: what was replayed, with the entropies measured on the way.

        Raises:
            StepOrderError: where that step is committed already.
            DataError: where groups and plan do not fit.
            StoreError: where it cannot be written; nothing has changed then.
        """
        check_next_step(self._store.step, step, "commit")
        if plan.step != step:
            raise DataError(
                "commit", expected=f"the plan of step {step}", found=f"that of step {plan.step}", hint="plan each step"
            )
        changes, report = changes_of_step(
            step,
            groups,
            plan,
            index=self._index,
            start=self._start,
            settings=self.settings,
            verifier=self._store.identity.verifier,
        )
        self._store.apply(changes)
        self._index.apply(changes)
        return report

    # ---- looking and mending -----------------------------------------------------------------------------------------

    def status(self) -> ReplayStatus:
        """Return the size of the experience."""
        capacities = self._index.capacities
        return ReplayStatus(
            step=self._store.step,
            questions=int(capacities.sum()),
            trajectories=self._index.num_live,
            seen=self._index.num_seen,
            retired=self._index.num_retired,
            buckets=tuple(capacities.tolist()),
            started=self._start.started,
        )

    def question(self, question_id: str) -> QuestionState | None:
        """Return what is known of a question's difficulty, None where it was never visited."""
        return self._index.question(question_id)

    def usage(self, experience_id: str) -> Usage | None:
        """Return how an experience was used, None where there is no such experience."""
        return self._index.usage(experience_id)

    def is_retired(self, question_id: str) -> bool:
        """Return whether a question was retired."""
        state = self._index.question(question_id)
        return state is not None and state.retired_step is not None

    def quarantine(self, ids: Sequence[str], reason: str) -> None:
        """Keep experiences from replay without removing them."""
        self._amend({key: replace(self._known_usage(key), quarantined=reason) for key in ids})

    def release(self, ids: Sequence[str]) -> None:
        """Let quarantined experiences take part again."""
        self._amend({key: replace(self._known_usage(key), quarantined=None) for key in ids})

    def roll_back(self, step: int) -> None:
        """Undo everything after a step, as if it had never happened.

        Raises:
            StepOrderError: where the store has not come to that step.
        """
        self._store.roll_back(step)
        self._index = ExperienceIndex.of(self._store)

    def close(self) -> None:
        """Close the store; closing twice is harmless."""
        self._store.close()

    def __enter__(self) -> ExperienceReplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- drawing -----------------------------------------------------------------------------------------------------

    @property
    def _start(self) -> StartState:
        return self._store.start or initial_state(self.settings)

    def _draw_by_bucket(self, num: int, rng: np.random.Generator) -> Iterator[tuple[int, int, float]]:
        capacities = self._index.capacities
        counts = allocate(num, capacities, self._log_weights, rng)
        probabilities = bucket_probabilities(self._log_weights, capacities)
        for bucket in np.flatnonzero(counts):
            slots = self._index.buckets[bucket].sample(int(counts[bucket]), rng)
            for slot in slots:
                yield int(slot), int(bucket), float(probabilities[bucket] / capacities[bucket])

    def _draw_uniform(self, num: int, rng: np.random.Generator) -> Iterator[tuple[int, int, float]]:
        capacities = self._index.capacities
        total = int(capacities.sum())
        ends = capacities.cumsum()
        for rank in rng.choice(total, min(num, total), replace=False):
            bucket = int(np.searchsorted(ends, rank, side="right"))
            slot = self._index.buckets[bucket].select(np.array([rank - (ends[bucket] - capacities[bucket])]))[0]
            yield int(slot), bucket, 1 / total

    def _proposed(self, slot: int, bucket: int, probability: float) -> ProposedQuestion:
        question_id = self._index.question_id(slot)
        return ProposedQuestion(question_id, bucket, probability, self._index.candidates(question_id))

    def _known_usage(self, key: str) -> Usage:
        usage = self._index.usage(key)
        if usage is None:
            raise DataError("experience id", expected="the id of a stored experience", found=key, hint="list the ids")
        return usage

    def _amend(self, usages: Mapping[str, Usage]) -> None:
        self._store.amend(usages)
        self._index.set_usages(usages)
