"""Token ids and log-probs as bytes, and ids made from content. No pickle: decoding never executes what a file says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from exgrpo.errors import StoreError

SCHEMA_VERSION = 1

LogProbDtype = Literal["float32", "float16"]
# Little-endian on every machine, so that a store can be carried from one to another.
_LOG_PROBS: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}
_TOKEN_IDS = np.dtype("<i4")


def question_id(prompt: str | Sequence[dict[str, Any]], answer: str | None = None) -> str:
    """Return a stable id (32 hex digits) of a question without an id of its own: a hash of prompt and answer.

    Args:
        prompt: text, or chat messages.
        answer: gold answer, where there is one.
    """
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False)
    return _digest(text.encode(), b"" if answer is None else b"=" + answer.encode())


def experience_id(question: str, response_ids: np.ndarray | Sequence[int]) -> str:
    """Return the id (32 hex digits) of a response to a question: a hash of the question's id and the token ids."""
    return _digest(question.encode(), np.asarray(response_ids, dtype=_TOKEN_IDS).tobytes())


def encode_token_ids(ids: np.ndarray) -> bytes:
    """Return token ids [T] as 4 bytes each."""
    return np.asarray(ids, dtype=_TOKEN_IDS).tobytes()


def decode_token_ids(data: bytes, where: str) -> np.ndarray:
    """Return int32 token ids [T], read-only.

    Raises:
        StoreError: where the bytes are no whole number of ids.
    """
    return _decode(data, _TOKEN_IDS, where).astype(np.int32, copy=False)


def encode_log_probs(log_probs: np.ndarray, dtype: LogProbDtype) -> bytes:
    """Return log-probs [T] as 4 or 2 bytes each."""
    return np.asarray(log_probs, dtype=_LOG_PROBS[dtype]).tobytes()


def decode_log_probs(data: bytes, dtype: LogProbDtype, where: str) -> np.ndarray:
    """Return float32 log-probs [T], read-only.

    Raises:
        StoreError: where the bytes are no whole number of log-probs.
    """
    log_probs = _decode(data, _LOG_PROBS[dtype], where).astype(np.float32, copy=False)
    log_probs.flags.writeable = False
    return log_probs


def _decode(data: bytes, dtype: np.dtype[Any], where: str) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise StoreError(
            where,
            expected=f"a whole number of {dtype.name} values",
            found=f"{len(data)} bytes",
            hint="the file is damaged; go back to a backup",
        )
    return np.frombuffer(data, dtype=dtype)


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
