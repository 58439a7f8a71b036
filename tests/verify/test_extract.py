"""Where the answer is looked for, and that no text makes it slow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exgrpo.verify.extract import after_thinking, final_answer, last_boxed


def slow_last_box(text):
    """The last balanced box that lies in no other balanced one, tried from every place. Quadratic, and plain."""
    found = []
    for start in range(len(text)):
        if text.startswith("\\boxed{", start):
            depth, place = 1, start + 7
            while place < len(text) and depth:
                if text[place] == "\\" and text[place + 1 : place + 2] in ("{", "}", "\\"):
                    place += 2
                    continue
                depth += {"{": 1, "}": -1}.get(text[place], 0)
                place += 1
            if not depth:
                found.append((start, place))
    outer = [(a, b) for a, b in found if not any(c < a and b <= d for c, d in found)]
    return text[outer[-1][0] + 7 : outer[-1][1] - 1].strip() if outer else None


pieces = st.lists(st.sampled_from(["\\boxed{", "{", "}", "1", " x ", "\\{", "\\}", "\\\\", "."]), max_size=14).map(
    "".join
)


@given(pieces)
def test_the_last_balanced_box_is_found_as_a_search_from_every_place_finds_it(text):
    # Boxes side by side are joined, which the slow search does not know: a word stands between them here.
    text = text.replace("\\boxed{", "word\\boxed{")
    assert last_boxed(text) == slow_last_box(text)


def test_boxes_that_stand_together_are_one_answer():
    assert last_boxed("\\boxed{1} and \\boxed{2}") == "1, 2"
    assert last_boxed("$\\boxed{1}$, $\\boxed{2}$ or $\\boxed{3}$") == "1, 2, 3"
    assert last_boxed("\\boxed{1}\\text{ and }\\boxed{2}") == "1, 2"
    assert last_boxed("\\boxed{1} gives \\boxed{2}") == "2"
    assert last_boxed("\\boxed{5} \\boxed{5}") == "5"


def test_thoughts_are_left_out():
    assert after_thinking("<think>a</think> b") == " b"
    assert after_thinking("a</think>b</think>c") == "c"
    assert after_thinking("no thoughts") == "no thoughts"
    assert after_thinking("no end", required=True) is None


def test_an_answer_is_found_in_the_ways_people_state_it():
    assert final_answer("<answer>a</answer> <ANSWER> b </ANSWER>") == "b"
    assert final_answer("The final answer is: **12 apples**.") == "12 apples"
    assert final_answer("Answer: 5\nAnswer: 6") == "6"
    assert final_answer("\\boxed{1} <answer>2</answer>") == "1"
    assert final_answer("nothing here") is None


@given(st.text(alphabet="\\boxed{}1 a<>/answerisnfl:.*\n", max_size=300))
def test_no_text_makes_extraction_fail(text):
    for found in (last_boxed(text), final_answer(text)):
        assert found is None or isinstance(found, str)
