"""The objective of the paper in float64, one number at a time: slow, and written from the formulas alone."""

from __future__ import annotations

import math


def advantages(rewards, group_size):
    """A_i = r_i - mean(r over its group)."""
    result = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        mean = sum(group) / len(group)
        result += [reward - mean for reward in group]
    return result


def token_loss(log_prob, past, advantage, replayed, *, shaping="ratio", beta=0.1, low=0.2, high=0.2, clip_fresh=True):
    """Loss of one token."""
    w = math.exp(log_prob - past)
    clipped = min(w * advantage, min(max(w, 1 - low), 1 + high) * advantage)
    if not replayed:
        return -(clipped if clip_fresh else w * advantage)
    if shaping == "ratio":
        return -(w / (w + beta)) * advantage
    if shaping == "sqrt":
        return -math.sqrt(w) * advantage
    return -(w if shaping == "none" else clipped / advantage if advantage else 0.0) * advantage


def mixed_loss(rows, *, loss_type, max_response_length, num_tokens=None, of=float, **settings):
    """Loss of rows (log_probs, pasts, advantage, replayed), each as long as its response; `of` of every token loss."""
    sums, lengths = [], []
    for log_probs, pasts, advantage, replayed in rows:
        losses = [of(token_loss(p, q, advantage, replayed, **settings)) for p, q in zip(log_probs, pasts, strict=True)]
        sums.append(sum(losses))
        lengths.append(len(losses))
    if loss_type == "dr_grpo":
        return sum(sums) / (len(rows) * max_response_length)
    if loss_type == "grpo":
        return sum(s / max(n, 1) for s, n in zip(sums, lengths, strict=True)) / len(rows)
    return sum(sums) / (max(sum(lengths), 1) if loss_type == "bnpo" else num_tokens)


def log_softmax(logits, temperature=1.0):
    """Log-probabilities of one position."""
    scaled = [logit / temperature for logit in logits]
    top = max(scaled)
    total = math.log(sum(math.exp(value - top) for value in scaled)) + top
    return [value - total for value in scaled]


def entropy(logits, temperature=1.0):
    """-sum p log p of one position; a token that cannot come adds nothing."""
    return -sum(math.exp(value) * value for value in log_softmax(logits, temperature) if value > -math.inf)
