"""Frozen records that cross the borders between packages. No I/O, no torch.

Letters as everywhere in this project: K rollouts in a group, T response tokens, P prompt tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["correct", "wrong", "unparsed", "timed_out", "crashed"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a verifier says of one response.

    Attributes:
        verdict: `correct`; `wrong`: an answer was found and is not right; `unparsed`: no answer was found; `timed_out`:
            judging took longer than the limit; `crashed`: judging failed.
        score: how right it is, in [0, 1]: 1 where correct; between the two only where a verifier gives partial credit.
        extracted: the answer that was found in the response, None where there is none.
        detail: why, where the verdict alone does not say it; empty otherwise.
    """

    verdict: Verdict
    score: float
    extracted: str | None
    detail: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One response that the current policy has just written, with its verdict.

    Attributes:
        response_ids: int32 [T], the exact ids the engine returned, end token included where one was written.
        behaviour_log_probs: float32 [T], log-probability of each response token under the policy that wrote it (nats),
            from the trainer's own forward, never the engine's. None where no forward was spent on the rollout, which
            only groups with equal rewards can do without.
        reward: the reward as the trainer uses it.
        correct: whether the answer counts as a success.
        verdict: see `Judgement`.
        mean_entropy: mean over response tokens of the token entropy under the policy that wrote it (nats), None as
            the log-probs.
        truncated: whether the response stopped at the length limit.
    """

    response_ids: np.ndarray
    behaviour_log_probs: np.ndarray | None
    reward: float
    correct: bool
    verdict: Verdict
    mean_entropy: float | None
    truncated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The K responses to one question in one step: K new ones, or K - 1 new ones and a replayed success.

    Attributes:
        question_id: stable id of the question.
        prompt_ids: int32 [P], the exact prompt ids that were given to the policy.
        rollouts: the new rollouts: K, or K - 1 where `replayed_id` is set.
        replayed_id: id of the experience that completes the group, None for a fresh question. A replayed experience
            counts as one success.
    """

    question_id: str
    prompt_ids: np.ndarray
    rollouts: tuple[Rollout, ...]
    replayed_id: str | None = None

    @property
    def num_correct(self) -> int:
        """Number of right answers in the whole group, the replayed success included (0..K)."""
        return sum(rollout.correct for rollout in self.rollouts) + (self.replayed_id is not None)

    @property
    def size(self) -> int:
        """K: the number of responses in the group, the replayed one included."""
        return len(self.rollouts) + (self.replayed_id is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Experience:
    """One success worth replaying, as it was when it was written. Never changes.

    Attributes:
        id: hash of question id and response ids (see `exgrpo.experience.codec.experience_id`).
        question_id: stable id of the question.
        prompt_ids: int32 [P].
        response_ids: int32 [T].
        behaviour_log_probs: float32 [T], log-probabilities under the past policy that wrote it (nats).
        reward: reward at collection.
        verdict: verdict at collection.
        verifier: name and version of what judged it, `name@version`.
        policy_step: training step in which it was written.
        mean_entropy: mean token entropy under the past policy (nats).
        truncated: whether it stopped at the length limit.
    """

    id: str
    question_id: str
    prompt_ids: np.ndarray
    response_ids: np.ndarray
    behaviour_log_probs: np.ndarray
    reward: float
    verdict: str
    verifier: str
    policy_step: int
    mean_entropy: float
    truncated: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """The mutable part of an experience.

    Attributes:
        uses: how often it was replayed.
        last_used_step: step of the latest replay, None before the first.
        entropy: latest known mean token entropy (nats); the one at collection until a newer one was measured.
        entropy_step: step at which `entropy` was measured.
        removed: why it no longer takes part in replay (`retired`, `age`, `uses`, `question_limit`, `total_limit`), None
            while it does. What is removed stays on disk until it is pruned.
        quarantined: why a person or a verifier keeps it from replay, None where nobody does.
    """

    uses: int
    last_used_step: int | None
    entropy: float
    entropy_step: int
    removed: str | None = None
    quarantined: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionState:
    """What is known of a question's difficulty.

    Attributes:
        question_id: stable id.
        visits: number of groups seen.
        successes: number of right answers over all visits.
        num_correct: right answers in the latest group (0..K).
        visited_step: step of the latest group.
        retired_step: step at which all K were right, None while the question is in play.
    """

    question_id: str
    visits: int
    successes: int
    num_correct: int
    visited_step: int
    retired_step: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored trajectory that could be replayed for a proposed question.

    Attributes:
        id: experience id.
        policy_step: step in which it was written.
        num_tokens: number of response tokens.
        entropy: latest known mean token entropy (nats).
        entropy_step: step at which that was measured.
        uses: how often it was replayed.
    """

    id: str
    policy_step: int
    num_tokens: int
    entropy: float
    entropy_step: int
    uses: int


@dataclass(frozen=True, slots=True)
class ProposedQuestion:
    """A question drawn for replay.

    Attributes:
        question_id: stable id.
        bucket: right answers in its latest group (0..K-1).
        probability: chance that a single draw from the index picks this question, in (0, 1].
        candidates: its trajectories in order of collection, at least one.
    """

    question_id: str
    bucket: int
    probability: float
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The questions to replay in a step: a pure function of index, settings, seed and step.

    Attributes:
        step: the training step.
        requested: how many questions were wanted.
        questions: those that were drawn, in the order of the draw.
    """

    step: int
    requested: int
    questions: tuple[ProposedQuestion, ...]

    @property
    def shortfall(self) -> int:
        """How many questions fewer than requested the experience could give."""
        return self.requested - len(self.questions)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """One question to replay, with the trajectory chosen for it.

    Attributes:
        experience: the trajectory, payload included.
        bucket: as in `ProposedQuestion`.
        probability: as in `ProposedQuestion`.
        entropy: the mean token entropy by which it was chosen (nats).
        uses: how often it was replayed before this step.
    """

    experience: Experience
    bucket: int
    probability: float
    entropy: float
    uses: int


@dataclass(frozen=True, slots=True, eq=False)
class ReplayPlan:
    """What a step replays.

    Attributes:
        step: the training step.
        requested: how many questions were wanted.
        replays: one per replayed question, in the order of the draw.
        entropies: experience id -> mean token entropy under the current policy, for every candidate that was scored in
            this step; the commit writes them down.
    """

    step: int
    requested: int
    replays: tuple[Replay, ...]
    entropies: dict[str, float]

    @property
    def shortfall(self) -> int:
        """How many questions fewer than requested are replayed."""
        return self.requested - len(self.replays)


@dataclass(frozen=True, slots=True)
class StartState:
    """Where the delayed start stands.

    Attributes:
        started: whether replay is on.
        started_step: step whose batch switched it on (the latest time), None before.
        recent: Pass@1 of the latest training batches, newest last, at most as many as the rule looks at.
    """

    started: bool = False
    started_step: int | None = None
    recent: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What one commit changed, as counts; the numbers a progress line or a metric shows.

    Attributes:
        step: the step committed.
        inserted: experiences new in the store.
        duplicates: successes that were in the store already, to the token.
        retired: questions retired in this step.
        removed: reason -> experiences that left replay in this step.
        started: whether replay is on after this step.
    """

    step: int
    inserted: int
    duplicates: int
    retired: int
    removed: dict[str, int]
    started: bool


@dataclass(frozen=True, slots=True)
class ReplayStatus:
    """The size of the experience.

    Attributes:
        step: last committed step, 0 in an empty store.
        questions: questions that can be drawn now.
        trajectories: trajectories that can be replayed now.
        seen: questions visited so far.
        retired: questions retired so far.
        buckets: [K], questions that can be drawn, by right answers in the latest group (0..K-1).
        started: whether replay is on.
    """

    step: int
    questions: int
    trajectories: int
    seen: int
    retired: int
    buckets: tuple[int, ...]
    started: bool
