"""Small groups and steps for the tests of the experience."""

from __future__ import annotations

from typing import Any

import numpy as np

from exgrpo.experience import ExperienceReplay, ReplaySettings, StoreIdentity
from exgrpo.types import CommitReport, Group, ReplayPlan, Rollout

K = 4
IDENTITY = StoreIdentity(num_rollouts=K, tokenizer="t", template="c", dataset="d", verifier="exact@1")


def rollout(correct: bool, ids: Any = (5, 6, 7), entropy: float = 0.5, **changes: Any) -> Rollout:
    """A rollout whose log-probs are told apart by its ids."""
    values: dict[str, Any] = {
        "response_ids": np.array(ids, dtype=np.int32),
        "behaviour_log_probs": -np.array(ids, dtype=np.float32) / 100,
        "reward": float(correct),
        "correct": correct,
        "verdict": "correct" if correct else "wrong",
        "mean_entropy": entropy,
        "truncated": False,
    }
    return Rollout(**{**values, **changes})


def group(question: str, correct: int, *, first_id: int = 0, replayed: str | None = None, size: int = K) -> Group:
    """A group with `correct` right new rollouts, each with ids of its own; entropies fall with the ids."""
    num = size - (replayed is not None)
    return Group(
        question_id=question,
        prompt_ids=np.array([1, 2, 3], dtype=np.int32),
        rollouts=tuple(
            rollout(n < correct, ids=(first_id + n, first_id + n + 1), entropy=1 / (1 + first_id + n))
            for n in range(num)
        ),
        replayed_id=replayed,
    )


def settings(**changes: Any) -> ReplaySettings:
    """Settings that replay from the first step on."""
    return ReplaySettings(**{"num_rollouts": K, "start_rule": "immediate", **changes})


def in_memory(seed: int = 0, **changes: Any) -> ExperienceReplay:
    """An empty experience without a file."""
    return ExperienceReplay.open(None, settings(**changes), identity=IDENTITY, seed=seed)


def no_plan(step: int) -> ReplayPlan:
    """The plan of a step that replays nothing."""
    return ReplayPlan(step, 0, (), {})


def plan_of(replay: ExperienceReplay, step: int, num_questions: int) -> ReplayPlan:
    """Propose and choose by the entropies already known."""
    proposal = replay.propose(step, num_questions)
    return replay.choose(proposal, {c.id: c.entropy for q in proposal.questions for c in q.candidates})


def commit(replay: ExperienceReplay, *groups: Group, step: int | None = None) -> CommitReport:
    """Commit fresh groups as the next step."""
    step = replay.status().step + 1 if step is None else step
    return replay.commit(step, groups, no_plan(step))


def filled(num_questions: int = 12, **changes: Any) -> ExperienceReplay:
    """An experience with questions of 1 to K - 1 right answers, in turn."""
    replay = in_memory(**changes)
    commit(replay, *[group(f"q{n}", 1 + n % (K - 1), first_id=10 * n) for n in range(num_questions)])
    return replay


def everything(store: Any) -> tuple[Any, ...]:
    """All that a store holds, as comparable values."""
    rows = list(store.trajectories())
    payloads = [
        (
            *(e.id, e.question_id, e.prompt_ids.tolist(), e.response_ids.tolist(), e.behaviour_log_probs.tolist()),
            *(e.reward, e.verdict, e.verifier, e.policy_step, e.mean_entropy, e.truncated),
        )
        for e in store.load([row.id for row in rows])
    ]
    return store.step, store.start, list(store.questions()), rows, payloads, list(store.events())
