"""A set that behaves as Python's and whose draws are uniform and depend on its members alone."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import DataError
from exgrpo.experience.membership import SlotSet

# Quantiles of chi-square at 1 - 1e-4, by degrees of freedom.
CRITICAL = {9: 33.720, 11: 37.367, 19: 50.795}

# Small slots collide often; the others lie on both sides of the borders of blocks.
slot = st.one_of(st.integers(0, 20), st.integers(1015, 1035), st.integers(0, 9000))
members = st.sets(slot, max_size=60)


def slot_set(slots):
    found = SlotSet()
    for one in slots:
        found.add(one)
    return found


def elements(slots):
    return slots.select(np.arange(len(slots))).tolist()


def assert_equally_likely(counts, num_outcomes):
    """Chi-square test of counts by outcome against the uniform distribution."""
    expected = sum(counts.values()) / num_outcomes
    assert expected > 5
    assert len(counts) == num_outcomes
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < CRITICAL[num_outcomes - 1]


# ---- a set -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), slot), max_size=80))
def test_it_changes_as_a_python_set_does(changes):
    found, model = SlotSet(), set()
    for adds, one in changes:
        (found.add if adds else found.discard)(one)
        (model.add if adds else model.discard)(one)
        assert len(found) == len(model)
        assert (one in found) == (one in model)
    assert elements(found) == sorted(model)
    assert all((one in found) == (one in model) for one in range(0, 9200, 7))


def test_nothing_is_in_an_empty_set():
    empty = SlotSet()
    assert len(empty) == 0
    assert 0 not in empty
    assert 10**12 not in empty  # asking does not make room
    empty.discard(10**12)
    assert elements(empty) == []
    assert empty.sample(0, np.random.default_rng(0)).tolist() == []


def test_negative_slots_are_never_members():
    found = slot_set([1023, 2047])
    assert -1 not in found
    assert -5000 not in found
    found.discard(-1)
    assert elements(found) == [1023, 2047]
    with pytest.raises(DataError, match="slot: expected 0 or more, found -1\n  hint: number"):
        found.add(-1)


def test_ranks_are_answered_in_the_order_asked():
    found = slot_set([5000, 3, 1024, 1023])
    assert found.select(np.array([3, 0, 2, 1, 0])).tolist() == [5000, 3, 1024, 1023, 3]
    assert found.select(np.array([0])).dtype == np.int64


@pytest.mark.parametrize("rank", [-1, 2, 10**9])
def test_a_rank_outside_the_set_is_refused(rank):
    with pytest.raises(DataError, match=f"rank: expected ranks of a set of 2, from 0 on, found {rank}\n  hint: take"):
        slot_set([3, 4]).select(np.array([0, rank]))


# ---- draws -----------------------------------------------------------------------------------------------------------


@given(members, st.integers(0, 2**32), st.data())
def test_a_draw_takes_the_ranks_that_the_generator_draws(slots, seed, data):
    num = data.draw(st.integers(0, len(slots)))
    found = slot_set(slots).sample(num, np.random.default_rng(seed))
    ranks = np.random.default_rng(seed).choice(len(slots), num, replace=False)
    assert found.dtype == np.int64
    assert found.tolist() == [sorted(slots)[rank] for rank in ranks]


@given(members, members, st.randoms(use_true_random=False), st.integers(0, 2**32))
def test_the_same_members_give_the_same_draw_whatever_came_and_went(slots, others, random, seed):
    history = [*slots, *others, 20_000]
    random.shuffle(history)
    lived = slot_set(history)
    for one in sorted(others | {20_000}, key=lambda _: random.random()):
        lived.discard(one)
    for one in sorted(slots & others, reverse=True):
        lived.add(one)
    fresh = slot_set(sorted(slots))
    num = len(slots) // 2
    generators = np.random.default_rng(seed), np.random.default_rng(seed)
    assert lived.sample(num, generators[0]).tolist() == fresh.sample(num, generators[1]).tolist()
    assert generators[0].random() == generators[1].random()  # and leave the generator alike


@given(members, st.integers(0, 2**32))
def test_drawing_all_gives_every_member_once_and_changes_nothing(slots, seed):
    found = slot_set(slots)
    assert sorted(found.sample(len(slots), np.random.default_rng(seed)).tolist()) == sorted(slots)
    assert elements(found) == sorted(slots)


@pytest.mark.parametrize("num", [3, -1])
def test_a_draw_of_more_than_there_is_is_refused(num):
    with pytest.raises(DataError, match=f"draw: expected from 0 to 2 members, all there are, found {num}\n  hint: ask"):
        slot_set([3, 4]).sample(num, np.random.default_rng(0))


def test_members_are_equally_likely_however_they_lie():
    slots = [0, 1, 2, 1023, 1024, 5000, 5001, 5002, 5003, 9000]  # blocks of unequal fill, empty ones between
    found, rng = slot_set(slots), np.random.default_rng(1)
    counts = Counter(found.sample(1, rng).item() for _ in range(8_000))
    assert_equally_likely(counts, 10)


def test_every_order_of_a_draw_is_equally_likely():
    slots = [2, 1023, 1024, 7000]
    found, rng = slot_set(slots), np.random.default_rng(2)
    counts = Counter(tuple(found.sample(2, rng).tolist()) for _ in range(8_000))
    assert counts.keys() == set(permutations(slots, 2))
    assert_equally_likely(counts, 12)


def test_a_large_set_is_drawn_uniformly_by_either_algorithm_of_numpy():
    # Of more than 10^4 members, numpy shuffles a part for over a fiftieth of them and uses Floyd's algorithm otherwise.
    found, rng = SlotSet(), np.random.default_rng(3)
    for one in range(0, 40_000, 2):
        found.add(one)
    few = np.concatenate([found.sample(200, rng) for _ in range(100)])
    many = np.concatenate([found.sample(2_000, rng) for _ in range(10)])
    for drawn in (few, many):
        assert (drawn % 2 == 0).all()
        assert_equally_likely(Counter((drawn // 2_000).tolist()), 20)
