"""Which trajectories leave replay, and why. Leaving is a mark: payloads stay until somebody prunes the store.

The paper knows retirement only. The limits on age, use and number are ours, off by default: later work found that old
and often reused experience hurts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

from exgrpo.experience.store import TrajectoryRow
from exgrpo.types import Replay

RETIRED = "retired"
AGE = "age"
USES = "uses"
QUESTION_LIMIT = "question_limit"
TOTAL_LIMIT = "total_limit"


def over_age(oldest_first: Iterable[TrajectoryRow], step: int, max_age_steps: int | None) -> list[str]:
    """Return ids of trajectories that would be older than `max_age_steps` in the step after `step`."""
    if max_age_steps is None:
        return []
    return [row.id for row in takewhile(lambda row: step + 1 - row.policy_step > max_age_steps, oldest_first)]


def used_up(replays: Sequence[Replay], max_uses: int | None) -> list[str]:
    """Return ids of replayed trajectories that have been replayed `max_uses` times, this one included."""
    if max_uses is None:
        return []
    return [replay.experience.id for replay in replays if replay.uses + 1 >= max_uses]


def oldest_beyond(oldest_first: Iterable[TrajectoryRow], num: int, limit: int) -> list[str]:
    """Return ids of the oldest of `num` trajectories, so many that `limit` remain."""
    return [row.id for row in islice(oldest_first, max(num - limit, 0))]
