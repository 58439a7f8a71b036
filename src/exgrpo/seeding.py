"""The only place that makes random generators."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_rng(seed: int, *names: str, step: int = 0) -> np.random.Generator:
    """Return a generator that depends on nothing but (seed, names, step).

    The draw of step k is therefore the same in a run that was stopped at step k - 1 and resumed as in one that never
    stopped, and two purposes never share a stream. Names are hashed with their lengths, so ("ab", "c") and ("a", "bc")
    differ.

    Args:
        seed: the run's seed, any integer.
        names: what the numbers are for, from general to special, for example ("replay", "questions").
        step: the training step, 0 for what does not belong to one.
    """
    digest = hashlib.blake2b(digest_size=32)
    for part in (str(int(seed)), *names, str(int(step))):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest.digest(), "little")))
