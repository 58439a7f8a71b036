"""Equal work in each micro-batch, useful rows only, little padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

Rows = dict[str, torch.Tensor]

# Tensors with a column per prompt token (padded on the left) and per response token (padded on the right).
PROMPT_TENSORS = ("prompt_ids", "prompt_mask")
RESPONSE_TENSORS = ("completion_ids", "completion_mask", "behaviour_log_probs")


def deal(chunks: Sequence[Rows], *, keep_useless: bool) -> list[Rows]:
    """Return the rows of an update's micro-batches dealt anew: as many, of about equal token counts, trimmed.

    Rows are sorted by length, so that a micro-batch holds rows of like length and is as wide as its own longest row.
    The loss stays what it was, because each row's weight was fixed before. Each micro-batch holds at least one row.

    Args:
        chunks: the micro-batches of one update; every row of the same padded length. `needed` [b] says which rows
            a forward is spent on in any case.
        keep_useless: whether the others stay, for an entropy bonus.
    """
    rows = {name: _joined([chunk[name] for chunk in chunks]) for name in chunks[0]}
    lengths = (rows["prompt_mask"].sum(dim=1) + rows["completion_mask"].sum(dim=1)).cpu().numpy()
    needed = rows["needed"].cpu().numpy()
    kept = np.arange(len(lengths))
    if not keep_useless:
        # A micro-batch cannot be empty: where too few rows teach something, the shortest of the others fill up.
        wanted = max(int(needed.sum()), len(chunks))
        kept = np.lexsort((lengths, ~needed))[:wanted]
    order = kept[np.argsort(lengths[kept], kind="stable")]
    parts = np.split(order, _boundaries(lengths[order], len(chunks)))
    return [_trimmed(rows, torch.as_tensor(part, device=rows["needed"].device)) for part in parts]


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if tensors[0].ndim == 0 else torch.cat(tensors)


def _boundaries(lengths: np.ndarray, num_parts: int) -> np.ndarray:
    """Where to cut rows of ascending length into parts of about equal token counts, none of them empty."""
    ends = lengths.cumsum()
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, num_parts) / num_parts, side="left") + 1
    part = np.arange(1, num_parts)
    # At least one row before each cut and one for every part after it.
    cuts = np.maximum.accumulate(np.maximum(cuts, part) - part) + part
    return np.minimum(cuts, len(lengths) - num_parts + part)


def _trimmed(rows: Rows, part: torch.Tensor) -> Rows:
    taken = {name: tensor if tensor.ndim == 0 else tensor[part] for name, tensor in rows.items()}
    prompt = int(taken["prompt_mask"].sum(dim=1).max())
    response = int(taken["completion_mask"].sum(dim=1).max())
    taken |= {name: taken[name][:, -prompt:] for name in PROMPT_TENSORS}
    return taken | {name: taken[name][:, :response] for name in RESPONSE_TENSORS}
