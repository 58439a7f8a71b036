"""How to learn from experience: pure functions of tensors.

A group of K responses to a question, one of them possibly from a past policy, has advantages A = r - mean(r). A fresh
token costs -min(w A, clip(w) A) with w = pi / pi_old, a replayed token -f(w*) A with w* = pi / pi_past and
f(w) = w / (w + beta) (arXiv 2510.02245, equations 3 and 4). Letters: B rows, T response tokens, V vocabulary, K
rollouts.
"""

from exgrpo.objective.advantages import group_advantages, useless_groups
from exgrpo.objective.entropy import (
    TokenStatistics,
    mean_entropy,
    mean_negative_log_prob,
    token_log_probs_and_entropies,
)
from exgrpo.objective.loss import LossType, ObjectiveSettings, PolicyLoss, RowWeights, mixed_policy_loss, row_weights
from exgrpo.objective.weights import RatioStatistics, Shaping, ratio_statistics, shaped_weight

__all__ = [
    "LossType",
    "ObjectiveSettings",
    "PolicyLoss",
    "RatioStatistics",
    "RowWeights",
    "Shaping",
    "TokenStatistics",
    "group_advantages",
    "mean_entropy",
    "mean_negative_log_prob",
    "mixed_policy_loss",
    "ratio_statistics",
    "row_weights",
    "shaped_weight",
    "token_log_probs_and_entropies",
    "useless_groups",
]
