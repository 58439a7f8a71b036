"""Which stored trajectory of a question is replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from exgrpo.errors import DataError
from exgrpo.experience.settings import TrajectorySelection
from exgrpo.types import Candidate


def choose_trajectory(
    candidates: Sequence[Candidate], entropies: Mapping[str, float], rule: TrajectorySelection, rng: np.random.Generator
) -> Candidate:
    """Return one of the candidates; ties go to the smallest id.

    Args:
        candidates: at least one, in any order.
        entropies: experience id -> uncertainty of the current policy (nats); unused by `random` and `latest`.
        rule: `lowest_entropy` (arXiv 2510.02245, section 3.2), `highest_entropy`, `random`, or `latest`, the one
            written last.
        rng: of `random`.

    Raises:
        DataError: where the rule needs an uncertainty that is missing or NaN.
    """
    ordered = sorted(candidates, key=lambda candidate: candidate.id)
    if rule == "random":
        return ordered[int(rng.integers(len(ordered)))]
    if rule == "latest":
        return max(ordered, key=lambda candidate: candidate.policy_step)
    for candidate in ordered:
        if math.isnan(entropies.get(candidate.id, math.nan)):
            raise DataError(
                f"uncertainty of experience {candidate.id}",
                expected="a number for every candidate of the proposal",
                found=entropies.get(candidate.id, "nothing"),
                hint="score every candidate; NaN means NaN in the policy's logits",
            )
    pick = min if rule == "lowest_entropy" else max
    return pick(ordered, key=lambda candidate: entropies[candidate.id])
