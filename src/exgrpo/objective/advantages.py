"""How much better than its group a response is."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from exgrpo.errors import ConfigError, DataError

Scale = Literal["none", "group", "batch"]

_STD_FLOOR = 1e-4  # TRL's: keeps a group of equal rewards from dividing by zero


def group_advantages(rewards: Float[Tensor, B], group_size: int, scale: Scale = "none") -> Float[Tensor, B]:
    """Return r - mean(r over its group), over all K rows of a group, replayed ones included.

    `none` is Dr.GRPO's form (arXiv 2510.02245, section 3.1). `group` and `batch` divide by the unbiased standard
    deviation of the group or of all rows, as TRL does.

    Args:
        rewards: rows of a group adjacent. A NaN reward (nothing could judge it) is left out of the mean and gets 0.
        group_size: K.
        scale: what the advantages are divided by.

    Raises:
        DataError: where the rows are no whole groups.
        ConfigError: for an unknown scale.
    """
    allowed = get_args(Scale)
    if scale not in allowed:
        raise ConfigError(
            "scale", expected=f"one of {', '.join(allowed)}", found=scale, hint="the paper divides by nothing: none"
        )
    groups = _groups(rewards, group_size)
    advantages = groups - groups.nanmean(dim=1, keepdim=True)
    if scale == "group":
        advantages = advantages / (_nanstd(groups).unsqueeze(1) + _STD_FLOOR)
    elif scale == "batch":
        advantages = advantages / (_nanstd(rewards.unsqueeze(0)) + _STD_FLOOR)
    return advantages.nan_to_num(nan=0.0).flatten()


def useless_groups(rewards: Float[Tensor, B], group_size: int) -> Bool[Tensor, Q]:
    """Return for each group whether it teaches nothing: its rewards are exactly equal, NaN ones left out.

    Equality is exact: a tolerance would drop groups whose small differences are all they have to say.

    Raises:
        DataError: where the rows are no whole groups.
    """
    groups = _groups(rewards, group_size)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1)
    return highest <= lowest


def _groups(rewards: Tensor, group_size: int) -> Tensor:
    if group_size < 1 or len(rewards) % group_size:
        raise DataError(
            "rewards",
            expected=f"whole groups of {group_size}",
            found=f"{len(rewards)} rows",
            hint="pass all rows, K >= 1 a group",
        )
    return rewards.view(-1, group_size)


def _nanstd(values: Float[Tensor, "N M"]) -> Float[Tensor, N]:
    count = (~values.isnan()).sum(dim=1)
    squares = (values - values.nanmean(dim=1, keepdim=True)).square()
    return (torch.nansum(squares, dim=1) / (count - 1)).sqrt()
