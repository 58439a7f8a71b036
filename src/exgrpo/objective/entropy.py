"""Log-probs and entropies of response tokens from logits, a few tokens at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from exgrpo.errors import ConfigError, DataError
from exgrpo.objective.masking import masked_row_mean


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """What a policy says of each token.

    Attributes:
        log_probs: float32 [B, T], log-probability of the token (nats).
        entropies: float32 [B, T], entropy of the distribution it was drawn from, -sum_v pi(v) log pi(v) (nats).
    """

    log_probs: Float[Tensor, "B T"]
    entropies: Float[Tensor, "B T"]


def token_log_probs_and_entropies(
    logits: Float[Tensor, "B T V"], token_ids: Int[Tensor, "B T"], *, temperature: float = 1.0, chunk_size: int = 1024
) -> TokenStatistics:
    """Return log-probs and entropies, differentiable, computed in float32 for `chunk_size` tokens at a time.

    A B x T x V tensor in float32 is never held, forward or backward: with half-precision logits that tensor would be
    twice the logits themselves. Double-precision logits stay so.

    Args:
        logits: at position t, of token t.
        token_ids: the tokens.
        temperature: the logits are divided by it, above 0.
        chunk_size: tokens at a time, at least 1.

    Raises:
        ConfigError: for a temperature or a chunk size outside its range.
        DataError: where `token_ids` are not as many as the positions of `logits`.
    """
    _check(logits, token_ids, temperature, chunk_size)
    flat = logits.flatten(0, 1)
    statistics = _ChunkedStatistics.apply(flat, token_ids.flatten(), temperature, chunk_size)  # type: ignore[no-untyped-call]
    log_probs, entropies = statistics
    return TokenStatistics(log_probs.view(token_ids.shape), entropies.view(token_ids.shape))


def mean_entropy(entropies: Float[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]) -> Float[Tensor, B]:
    """Return H(o): the mean entropy over a response's tokens (arXiv 2510.02245, section 3.2), 0 for an empty one."""
    return masked_row_mean(entropies, response_mask)


def mean_negative_log_prob(log_probs: Float[Tensor, "B T"], response_mask: Bool[Tensor, "B T"]) -> Float[Tensor, B]:
    """Return the mean of -log pi over a response's tokens (arXiv 2510.02245, Algorithm 1), 0 for an empty one."""
    return masked_row_mean(-log_probs, response_mask)


def _check(logits: Tensor, token_ids: Tensor, temperature: float, chunk_size: int) -> None:
    if not 0 < temperature < math.inf:
        raise ConfigError("temperature", expected="a finite number above 0", found=temperature, hint="pass 1.0")
    if chunk_size < 1:  # range() takes a negative step for an empty one, and the results would stay uninitialised
        raise ConfigError("chunk_size", expected="at least 1 token", found=chunk_size, hint="leave it at its default")
    if logits.shape[:2] != token_ids.shape:  # flattened, ids of one row would be read off the logits of another
        raise DataError(
            "token_ids",
            expected=f"the positions of the logits, {list(logits.shape[:2])}",
            found=list(token_ids.shape),
            hint="position t of the logits speaks of token t: drop the last position, and the first token",
        )


class _ChunkedStatistics(torch.autograd.Function):
    """Keeps the logits, and computes each chunk's distribution again on the way back."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, chunk_size: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits, ids)
        ctx.temperature, ctx.chunk_size = temperature, chunk_size
        dtype = _working_dtype(logits)
        log_probs, entropies = logits.new_empty(len(ids), dtype=dtype), logits.new_empty(len(ids), dtype=dtype)
        for first in range(0, len(ids), chunk_size):
            part = slice(first, first + chunk_size)
            chunk = _log_softmax(logits[part], temperature)
            log_probs[part] = chunk.gather(1, ids[part].unsqueeze(1)).squeeze(1)
            entropies[part] = _entropy(chunk)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        grad_log_probs, grad_entropies = grads
        logits, ids = ctx.saved_tensors
        grad = torch.empty_like(logits)
        for first in range(0, len(ids), ctx.chunk_size):
            part = slice(first, first + ctx.chunk_size)
            chunk = _log_softmax(logits[part], ctx.temperature)
            probs = chunk.exp()
            # d log pi(a) / d z = 1[a] - pi;  d H / d z = -pi (log pi + H).
            surprise = torch.where(probs > 0, chunk, 0.0) + _entropy(chunk).unsqueeze(1)
            step = -probs * (grad_log_probs[part].unsqueeze(1) + grad_entropies[part].unsqueeze(1) * surprise)
            step.scatter_add_(1, ids[part].unsqueeze(1), grad_log_probs[part].unsqueeze(1))
            grad[part] = step / ctx.temperature
        return grad, None, None, None


def _working_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _log_softmax(logits: Float[Tensor, "C V"], temperature: float) -> Float[Tensor, "C V"]:
    return (logits.to(_working_dtype(logits)) / temperature).log_softmax(dim=1)


def _entropy(log_probs: Float[Tensor, "C V"]) -> Float[Tensor, C]:
    # A token that cannot come (log-prob -inf) adds nothing: p log p goes to 0, while 0 x -inf would be NaN.
    probs = log_probs.exp()
    return -(probs * torch.where(probs > 0, log_probs, 0.0)).sum(dim=1)
