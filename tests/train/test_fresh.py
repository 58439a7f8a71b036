"""The stream of fresh questions loses nothing, repeats nothing, and starts over with a new order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import DataError
from exgrpo.train.fresh import FreshQuestions

NAMES = [f"q{n}" for n in range(7)]


def stream(ids=NAMES, shuffle=True, seed=3, batch_questions=4):
    return FreshQuestions(ids, shuffle=shuffle, seed=seed, batch_questions=batch_questions)


def never(_):
    return False


def test_without_shuffling_the_order_is_that_of_the_data_set_again_and_again():
    questions = stream(shuffle=False)
    taken = [question for _ in range(4) for question in questions.take(4, busy=(), retired=never)]
    assert taken == (NAMES * 3)[:16]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(0, 2**31))
def test_each_epoch_holds_every_question_once_however_few_are_taken_at_a_time(sizes, seed):
    questions = stream(seed=seed)
    taken = [question for size in sizes for question in questions.take(size, busy=(), retired=never)]
    whole = len(taken) // 7 * 7
    # A batch never holds a question twice, so at the seam of two epochs a question may trade places with the next.
    assert questions.state.position == len(taken) + len(questions.state.deferred)
    counts = [taken[:whole].count(name) for name in NAMES]
    assert max(counts) - min(counts) <= 2
    assert sum(counts) == whole


def test_epochs_have_different_orders_and_seeds_too():
    first, second = (stream().take(4, busy=(), retired=never) for _ in range(2))
    assert first == second
    long = stream(batch_questions=7)
    assert long.take(7, busy=(), retired=never) != long.take(7, busy=(), retired=never)
    assert stream(seed=4).take(4, busy=(), retired=never) != first


def test_a_busy_question_is_put_off_to_the_next_step_not_lost():
    questions = stream(shuffle=False)
    assert questions.take(3, busy={"q1"}, retired=never) == ["q0", "q2", "q3"]
    assert questions.take(3, busy=(), retired=never) == ["q1", "q4", "q5"]


def test_retired_questions_are_left_out_while_others_remain_and_fill_the_batch_when_none_do():
    questions = stream(shuffle=False)
    assert questions.take(4, busy=(), retired={"q0", "q2"}.__contains__) == ["q1", "q3", "q4", "q5"]
    assert len(set(questions.take(4, busy=(), retired=lambda _: True))) == 4


def test_rows_that_share_an_id_are_one_question():
    questions = stream(["a", "b", "a", "c"], shuffle=False, batch_questions=3)
    assert questions.take(3, busy=(), retired=never) == ["a", "b", "c"]
    assert [questions.row(name) for name in ("a", "b", "c", "d")] == [0, 1, 3, None]


def test_too_few_questions_for_one_batch_is_an_error_with_a_hint():
    with pytest.raises(DataError, match=r"at least 8 distinct questions.*\n.*hint"):
        stream(batch_questions=8)


def test_a_stream_set_to_a_state_goes_on_from_there():
    first, second = stream(), stream()
    first.take(3, busy={"q1", "q2"}, retired=never)
    first.take(4, busy={"q3"}, retired=never)
    second.state = first.state
    assert [second.take(4, busy=(), retired=never) for _ in range(4)] == [
        first.take(4, busy=(), retired=never) for _ in range(4)
    ]
