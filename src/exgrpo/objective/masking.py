"""Sums and means over the entries that count.

Entries that do not count are replaced, not multiplied by zero: 0 x inf and 0 x NaN are NaN, in the value and in the
gradient. Nothing to count gives 0 with gradient 0.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor, where


def masked_sum(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Return the sum of the values where `mask` is True."""
    return where(mask, values, 0.0).sum()


def masked_row_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, B]:
    """Return the mean of each row's values where `mask` is True, 0 for a row where it nowhere is."""
    return where(mask, values, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
