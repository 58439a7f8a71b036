"""Bytes give back what went in; ids are functions of content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from exgrpo.errors import StoreError
from exgrpo.experience import experience_id, question_id
from exgrpo.experience.codec import decode_log_probs, decode_token_ids, encode_log_probs, encode_token_ids


@given(npst.arrays(np.int32, st.integers(0, 50)))
def test_token_ids_come_back_as_they_were(ids):
    data = encode_token_ids(ids)
    assert len(data) == 4 * len(ids)
    back = decode_token_ids(data, "here")
    assert back.dtype == np.int32
    assert back.tolist() == ids.tolist()


@given(npst.arrays(np.float32, st.integers(0, 50), elements=st.floats(-100, 0, width=32)))
def test_log_probs_come_back_exactly_or_to_half_precision(log_probs):
    back = decode_log_probs(encode_log_probs(log_probs, "float32"), "float32", "here")
    assert back.dtype == np.float32
    assert back.tolist() == log_probs.tolist()
    half = encode_log_probs(log_probs, "float16")
    assert len(half) == 2 * len(log_probs)
    np.testing.assert_allclose(decode_log_probs(half, "float16", "here"), log_probs, rtol=2**-11, atol=1e-7)


def test_decoded_arrays_cannot_be_written():
    for array in (decode_token_ids(b"\0" * 8, "here"), decode_log_probs(b"\0" * 8, "float16", "here")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@pytest.mark.parametrize("decode", [decode_token_ids, lambda data, where: decode_log_probs(data, "float32", where)])
def test_half_a_value_is_damage_and_says_where(decode):
    with pytest.raises(StoreError, match=r"row 7: (?s:.*)hint"):
        decode(b"abc", "row 7")


def test_ids_depend_on_every_part_and_on_where_it_ends():
    ids = {
        question_id("a", "b"),
        question_id("ab", ""),
        question_id("ab"),
        question_id("a", "c"),
        question_id([{"role": "user", "content": "a"}], "b"),
        experience_id("a", [1, 2]),
        experience_id("a", [1]),
        experience_id("b", [1, 2]),
    }
    assert len(ids) == 8
    assert all(len(value) == 32 and set(value) <= set("0123456789abcdef") for value in ids)
    assert experience_id("a", [1, 2]) == experience_id("a", np.array([1, 2], dtype=np.int64))


def test_ids_never_change_between_releases():
    assert question_id("1+1=", "2") == "171e80ab729cd961f05b59e82f3ebb67"
    assert experience_id("1+1=", [3, 1, 4]) == "c757a9dc118bfb3a222a121584823265"
