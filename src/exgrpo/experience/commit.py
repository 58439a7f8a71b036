"""What a step changes in the experience, as a pure function of the step and what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from exgrpo.errors import DataError
from exgrpo.experience.codec import experience_id
from exgrpo.experience.index import ExperienceIndex, is_live
from exgrpo.experience.retention import (
    AGE,
    QUESTION_LIMIT,
    RETIRED,
    TOTAL_LIMIT,
    USES,
    oldest_beyond,
    over_age,
    used_up,
)
from exgrpo.experience.settings import ReplaySettings
from exgrpo.experience.start import advance
from exgrpo.experience.store import StepChanges, TrajectoryRow, trajectory_row
from exgrpo.types import CommitReport, Experience, Group, QuestionState, ReplayPlan, Rollout, StartState, Usage

_LOG_PROB_SLACK = 1e-4  # a log-prob of a certain token may come out a rounding error above 0


@dataclass
class _Draft:
    """Changes of a step while they are gathered; reads fall back to the index."""

    index: ExperienceIndex
    step: int
    inserted: dict[str, Experience] = field(default_factory=dict)
    questions: dict[str, QuestionState] = field(default_factory=dict)
    usages: dict[str, Usage] = field(default_factory=dict)
    duplicates: int = 0

    def change(self, key: str, **values: object) -> None:
        usage = self.usages.get(key) or self.index.usage(key)
        assert usage is not None  # ids come from the index, the plan or this step
        self.usages[key] = replace(usage, **values)  # type: ignore[arg-type]

    def remove(self, ids: Iterable[str], reason: str) -> None:
        for key in ids:
            self.change(key, removed=reason)

    def still_live(self, *rows: Iterable[TrajectoryRow]) -> Iterator[TrajectoryRow]:
        """The rows that this step has not removed."""
        return (row for row in chain(*rows) if is_live(self.usages.get(row.id, row.usage)))

    def new_rows(self) -> list[TrajectoryRow]:
        return [trajectory_row(experience, self.usages[key]) for key, experience in self.inserted.items()]

    def num_live(self) -> int:
        before = (self.index.usage(key) for key in self.usages)
        were = sum(usage is not None and is_live(usage) for usage in before)
        return self.index.num_live - were + sum(map(is_live, self.usages.values()))


def changes_of_step(
    step: int,
    groups: Sequence[Group],
    plan: ReplayPlan,
    *,
    index: ExperienceIndex,
    start: StartState,
    settings: ReplaySettings,
    verifier: str,
) -> tuple[StepChanges, CommitReport]:
    """Return all changes of a step, and their counts (arXiv 2510.02245, section 3.2 and Algorithm 1).

    The start state looks at the fresh questions of this batch; a batch that switches replay on is collected already.
    Right answers of partly solved groups are stored; a replayed success counts as one of the K. A question with all K
    right is retired for good: its trajectories leave, and later answers to it are not stored.

    Args:
        step: the step.
        groups: the batch.
        plan: what was replayed.
        index: what is known before the step; not changed.
        start: start state before the step.
        settings: the rules.
        verifier: name and version of what judged, for the record.

    Raises:
        DataError: for groups that do not fit the plan or the settings.
    """
    check_groups(groups, plan, settings.num_rollouts)
    start = advance(start, _fresh_pass_rate(groups), step, settings)
    draft = _Draft(index, step)
    collecting = start.started or settings.collect == "from_first_step"
    for group in groups:
        _visit(draft, group, settings, verifier, collecting)
    _note_replays(draft, plan)
    _keep_limits(draft, plan, settings)
    changes = StepChanges(step, tuple(draft.inserted.values()), tuple(draft.questions.values()), draft.usages, start)
    return changes, _report(draft, start)


def check_groups(groups: Sequence[Group], plan: ReplayPlan, num_rollouts: int) -> None:
    """Raise a DataError unless the groups are whole, their arrays fit, and they are those of the plan."""
    planned = {replay.experience.id: replay.experience.question_id for replay in plan.replays}
    replayed = {group.replayed_id: group.question_id for group in groups if group.replayed_id is not None}
    if replayed != planned:
        _refuse("groups", "a group for each replay of the plan", f"{len(replayed)} of {len(planned)}", "commit all")
    if len({group.question_id for group in groups}) != len(groups):
        _refuse("groups", "each question once in a step", "a question twice", "put its rollouts into one group")
    for group in groups:
        where = f"group of question {group.question_id}"
        if group.size != num_rollouts:
            _refuse(where, f"{num_rollouts} rollouts, the replayed one included", group.size, "commit whole groups")
        partly_solved = 0 < group.num_correct < group.size
        for rollout in group.rollouts:
            _check_rollout(rollout, where, needed=partly_solved and rollout.correct)


def _check_rollout(rollout: Rollout, where: str, *, needed: bool) -> None:
    ids, log_probs, entropy = rollout.response_ids, rollout.behaviour_log_probs, rollout.mean_entropy
    if log_probs is None or entropy is None:
        if needed:
            _refuse(where, "behaviour log-probs and entropy of a success worth keeping", "none", "score the rollout")
        return
    if ids.ndim != 1 or ids.shape != log_probs.shape or not len(ids):
        _refuse(where, "as many log-probs as response ids, at least one", f"{log_probs.shape} for {ids.shape}", "")
    if not (np.isfinite(log_probs).all() and (log_probs <= _LOG_PROB_SLACK).all()):
        _refuse(where, "finite behaviour log-probs of at most 0", "others", "look for NaN in the policy's logits")
    if not (np.isfinite(entropy) and entropy >= -_LOG_PROB_SLACK):
        _refuse(where, "a finite mean entropy of at least 0", entropy, "look for NaN in the logits")


def _refuse(where: str, expected: str, found: object, hint: str) -> None:
    hint = hint or "log-probs are those of the response tokens alone, end token included"
    raise DataError(where, expected=expected, found=found, hint=hint)


def _fresh_pass_rate(groups: Sequence[Group]) -> float | None:
    correct = [rollout.correct for group in groups if group.replayed_id is None for rollout in group.rollouts]
    return sum(correct) / len(correct) if correct else None


def _visit(draft: _Draft, group: Group, settings: ReplaySettings, verifier: str, collecting: bool) -> None:
    known = draft.index.question(group.question_id) or QuestionState(group.question_id, 0, 0, 0, 0)
    solved = group.num_correct == group.size
    retires = solved and known.retired_step is None and settings.retirement == "solved"
    draft.questions[group.question_id] = QuestionState(
        question_id=group.question_id,
        visits=known.visits + 1,
        successes=known.successes + sum(rollout.correct for rollout in group.rollouts),
        num_correct=group.num_correct,
        visited_step=draft.step,
        retired_step=draft.step if retires else known.retired_step,
    )
    if retires:
        draft.remove([row.id for row in draft.index.live_of(group.question_id)], RETIRED)
    elif collecting and not solved and known.retired_step is None:
        for rollout in group.rollouts:
            if rollout.correct:
                _insert(draft, group, rollout, verifier)


def _insert(draft: _Draft, group: Group, rollout: Rollout, verifier: str) -> None:
    assert rollout.behaviour_log_probs is not None  # check_groups has seen to it
    assert rollout.mean_entropy is not None
    key = experience_id(group.question_id, rollout.response_ids)
    if key in draft.inserted or draft.index.usage(key) is not None:
        draft.duplicates += 1
        return
    draft.usages[key] = Usage(0, None, rollout.mean_entropy, draft.step)
    draft.inserted[key] = Experience(
        id=key,
        question_id=group.question_id,
        prompt_ids=group.prompt_ids,
        response_ids=rollout.response_ids,
        behaviour_log_probs=rollout.behaviour_log_probs,
        reward=rollout.reward,
        verdict=rollout.verdict,
        verifier=verifier,
        policy_step=draft.step,
        mean_entropy=rollout.mean_entropy,
        truncated=rollout.truncated,
    )


def _note_replays(draft: _Draft, plan: ReplayPlan) -> None:
    for key, entropy in plan.entropies.items():
        draft.change(key, entropy=float(entropy), entropy_step=draft.step)
    for replay in plan.replays:
        draft.change(replay.experience.id, uses=replay.uses + 1, last_used_step=draft.step)


def _keep_limits(draft: _Draft, plan: ReplayPlan, settings: ReplaySettings) -> None:
    index, new = draft.index, draft.new_rows()
    draft.remove(over_age(draft.still_live(index.oldest_live()), draft.step, settings.max_age_steps), AGE)
    in_play = [replay for replay in plan.replays if is_live(draft.usages[replay.experience.id])]
    draft.remove(used_up(in_play, settings.max_uses), USES)
    if settings.max_trajectories_per_question is not None:
        for question in {row.question_id: None for row in new}:
            mine = [row for row in new if row.question_id == question]
            live = list(draft.still_live(index.live_of(question), mine))
            draft.remove(oldest_beyond(live, len(live), settings.max_trajectories_per_question), QUESTION_LIMIT)
    if settings.max_trajectories is not None:
        live_now = draft.still_live(index.oldest_live(), new)
        draft.remove(oldest_beyond(live_now, draft.num_live(), settings.max_trajectories), TOTAL_LIMIT)


def _report(draft: _Draft, start: StartState) -> CommitReport:
    removed = Counter(
        usage.removed
        for key, usage in draft.usages.items()
        if usage.removed is not None and ((before := draft.index.usage(key)) is None or before.removed is None)
    )
    return CommitReport(
        step=draft.step,
        inserted=len(draft.inserted),
        duplicates=draft.duplicates,
        retired=sum(state.retired_step == draft.step for state in draft.questions.values()),
        removed=dict(removed),
        started=start.started,
    )
