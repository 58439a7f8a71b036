"""The trajectory of a question: by the rule, ties by id, never by a number that is not there."""

from __future__ import annotations

import math
from collections import Counter
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import DataError
from exgrpo.experience.selection import choose_trajectory
from exgrpo.types import Candidate

RULES = ("lowest_entropy", "highest_entropy", "random", "latest")
CRITICAL_DF_3 = 21.108  # quantile of chi-square at 1 - 1e-4


def candidate(name, step=1):
    return Candidate(id=name, policy_step=step, num_tokens=5, entropy=9.0, entropy_step=step, uses=0)


def choose(candidates, entropies, rule, seed=0):
    return choose_trajectory(candidates, MappingProxyType(entropies), rule, np.random.default_rng(seed)).id


def test_the_rules_worked_by_hand():
    stored = [candidate("b", 3), candidate("a", 7), candidate("c", 5)]
    current = {"a": 0.2, "b": 0.1, "c": 0.3}
    assert choose(stored, current, "lowest_entropy") == "b"
    assert choose(stored, current, "highest_entropy") == "c"
    assert choose(stored, current, "latest") == "a"


def test_entropy_is_that_of_the_current_policy_not_the_stored_one():
    stored = [Candidate("a", 1, 5, 0.1, 1, 0), Candidate("b", 1, 5, 0.9, 1, 0)]
    assert choose(stored, {"a": 0.5, "b": 0.4}, "lowest_entropy") == "b"


@pytest.mark.parametrize("rule", ["lowest_entropy", "highest_entropy", "latest"])
@given(order=st.permutations("abcd"))
def test_a_tie_goes_to_the_smallest_id(rule, order):
    assert choose([candidate(name) for name in order], dict.fromkeys("abcd", 0.5), rule) == "a"


@given(
    stored=st.dictionaries(st.text("abc", min_size=1), st.tuples(st.integers(0, 3), st.floats(0, 12)), min_size=1),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_the_choice_is_extreme_and_does_not_depend_on_the_order_of_candidates(stored, seed, data):
    candidates = [candidate(name, step) for name, (step, _) in stored.items()]
    entropies = {name: entropy for name, (_, entropy) in stored.items()}
    shuffled = data.draw(st.permutations(candidates))
    chosen = {rule: choose(candidates, entropies, rule, seed) for rule in RULES}
    assert chosen == {rule: choose(shuffled, entropies, rule, seed) for rule in RULES}
    assert entropies[chosen["lowest_entropy"]] == min(entropies.values())
    assert entropies[chosen["highest_entropy"]] == max(entropies.values())
    assert stored[chosen["latest"]][0] == max(step for step, _ in stored.values())


@pytest.mark.parametrize("rule", ["lowest_entropy", "highest_entropy"])
@pytest.mark.parametrize(("found", "shown"), [({}, "nothing"), ({"b": math.nan}, math.nan)])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_missing_or_nan_entropy_is_refused_and_named(rule, found, shown, order):
    with pytest.raises(DataError) as caught:
        choose([candidate(name) for name in order], {"a": 0.5} | found, rule)
    assert caught.value.where == "uncertainty of experience b"
    assert caught.value.found is shown
    assert caught.value.hint


@pytest.mark.parametrize("rule", ["random", "latest"])
def test_the_rules_that_need_no_entropy_do_without(rule):
    assert choose([candidate("a")], {}, rule) == "a"
    assert choose([candidate("a")], {"a": math.nan}, rule) == "a"


def test_random_is_uniform_and_repeats_with_its_generator():
    stored = [candidate(name, step) for step, name in enumerate("dbca")]
    rng = np.random.default_rng(4)
    counts = Counter(choose_trajectory(stored, {}, "random", rng).id for _ in range(4_000))
    assert sum((counts[name] - 1_000) ** 2 / 1_000 for name in "abcd") < CRITICAL_DF_3
    assert [choose(stored, {}, "random", seed) for seed in range(20)] == [
        choose(stored, {}, "random", seed) for seed in range(20)
    ]


def test_only_random_uses_its_generator():
    for rule in RULES:
        rng = np.random.default_rng(0)
        choose_trajectory([candidate("a"), candidate("b")], {"a": 1.0, "b": 2.0}, rule, rng)
        assert (rng.random() == np.random.default_rng(0).random()) == (rule != "random")
