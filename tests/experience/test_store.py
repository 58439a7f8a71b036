"""What every store promises, asked of each."""

from __future__ import annotations

import pytest

from exgrpo.errors import StepOrderError, StoreError
from exgrpo.experience import ExperienceReplay, MemoryStore, SQLiteStore

from .helpers import IDENTITY, commit, everything, group, plan_of, settings


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    opened = MemoryStore(IDENTITY) if request.param == "memory" else SQLiteStore(tmp_path / "x.sqlite", IDENTITY)
    yield opened
    opened.close()


def replay_on(store, **changes):
    return ExperienceReplay(settings(**changes), store, seed=0)


def run_steps(replay, num, start=1):
    """Steps with new and replayed questions, retirements and a limit."""
    for step in range(start, start + num):
        plan = plan_of(replay, step, 6)
        busy = {item.experience.question_id for item in plan.replays}
        fresh = [f"q{(step * 3 + n) % 11}" for n in range(8)]
        fresh = [question for question in dict.fromkeys(fresh) if question not in busy][: 6 - len(busy)]
        groups = [group(question, (step + n) % 5, first_id=step * 20 + n) for n, question in enumerate(fresh)]
        groups += [
            group(item.experience.question_id, step % 4, first_id=step * 30, replayed=item.experience.id)
            for item in plan.replays
        ]
        replay.commit(step, groups, plan)


def test_an_empty_store_is_empty(store):
    assert (store.step, store.start) == (0, None)
    assert list(store.questions()) == list(store.trajectories()) == list(store.events()) == []
    assert store.identity == IDENTITY
    assert store.load([]) == []


def test_what_was_committed_comes_back_to_the_last_token(store):
    replay = replay_on(store)
    made = group("q", 2, first_id=7)
    commit(replay, made)
    experiences = store.load([row.id for row in store.trajectories()])
    assert len(experiences) == 2
    for experience, rollout in zip(experiences, made.rollouts, strict=False):
        assert experience.response_ids.tolist() == rollout.response_ids.tolist()
        assert experience.behaviour_log_probs.tolist() == rollout.behaviour_log_probs.tolist()
        assert experience.prompt_ids.tolist() == made.prompt_ids.tolist()
        assert (experience.question_id, experience.policy_step) == ("q", 1)
        assert (experience.reward, experience.verdict, experience.verifier) == (1.0, "correct", "exact@1")
        assert (experience.mean_entropy, experience.truncated) == (rollout.mean_entropy, False)


def test_experiences_are_loaded_in_the_order_asked_for_also_many_at_once(store):
    replay = replay_on(store)
    commit(replay, *[group(f"q{n}", 3, first_id=5 * n) for n in range(300)])
    ids = [row.id for row in store.trajectories()]
    assert len(ids) == 900
    assert [experience.id for experience in store.load(ids[::-1])] == ids[::-1]
    assert [experience.id for experience in store.load([ids[3], ids[1], ids[3]])] == [ids[3], ids[1], ids[3]]


def test_an_unknown_id_is_an_error(store):
    with pytest.raises(StoreError, match=r"stored experience, found nobody(?s:.*)hint"):
        store.load(["nobody"])


def test_a_step_is_committed_once(store):
    replay = replay_on(store)
    commit(replay, group("q", 2), step=3)
    before = everything(store)
    for step in (3, 2, 0):
        with pytest.raises(StepOrderError, match="a step after 3"):
            commit(replay, group("q", 2), step=step)
    assert everything(store) == before


def test_rolling_back_gives_the_store_that_never_went_on(store, tmp_path):
    replay = replay_on(store, max_trajectories_per_question=3, max_age_steps=4)
    run_steps(replay, 5)
    middle = everything(store)
    status = replay.status()
    run_steps(replay, 4, start=6)
    assert everything(store) != middle
    replay.roll_back(5)
    assert everything(store) == middle
    assert replay.status() == status
    run_steps(replay, 4, start=6)
    other = MemoryStore(IDENTITY)
    run_steps(replay_on(other, max_trajectories_per_question=3, max_age_steps=4), 9)
    assert everything(store) == everything(other)


def test_rolling_back_to_nothing_empties_the_store(store):
    replay = replay_on(store)
    run_steps(replay, 3)
    replay.roll_back(0)
    assert everything(store) == everything(MemoryStore(IDENTITY))
    run_steps(replay, 2)


def test_a_store_cannot_be_rolled_forward(store):
    replay = replay_on(store)
    run_steps(replay, 2)
    for step in (3, -1):
        with pytest.raises(StepOrderError, match=r"from 0 to 2(?s:.*)hint"):
            replay.roll_back(step)


def test_quarantine_is_logged_and_rolled_back_with_the_step_after_which_it_came(store):
    replay = replay_on(store)
    run_steps(replay, 2)
    key = next(row.id for row in store.trajectories() if row.usage.removed is None)
    before = everything(store)
    run_steps(replay, 1, start=3)
    replay.quarantine([key], "doubtful")
    assert replay.usage(key).quarantined == "doubtful"
    assert list(store.events(key))[-1].step == 3
    replay.roll_back(2)
    assert replay.usage(key).quarantined is None
    assert everything(store) == before


def test_the_log_tells_the_history_of_a_question_and_of_an_experience(store):
    replay = replay_on(store)
    commit(replay, group("q", 2))
    commit(replay, group("q", 4, first_id=50))
    key = next(iter(store.trajectories())).id
    assert [(event.step, event.kind) for event in store.events("q")] == [(1, "question"), (2, "question")]
    assert [(event.step, event.kind) for event in store.events(key)] == [(1, "insert"), (1, "usage"), (2, "usage")]
    assert "retired" in list(store.events(key))[-1].after
