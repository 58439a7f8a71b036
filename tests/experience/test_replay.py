"""The facade: what is drawn, what is chosen, what a step changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from exgrpo.errors import ConfigError, DataError, StepOrderError
from exgrpo.experience import experience_id
from exgrpo.types import ReplayPlan

from .helpers import K, commit, filled, group, in_memory, no_plan, plan_of, rollout


def ids_of(proposal):
    return [question.question_id for question in proposal.questions]


# ---- proposing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "num_questions", "expected"), [(0.5, 12, 6), (0.3, 10, 3), (0.25, 7, 1), (0.0, 12, 0), (0.99, 5, 4)]
)
def test_the_ratio_is_rounded_down_to_whole_questions(ratio, num_questions, expected):
    proposal = filled(replay_ratio=ratio).propose(2, num_questions)
    assert proposal.requested == len(proposal.questions) == expected


def test_a_proposal_is_a_function_of_store_seed_and_step():
    replay = filled()
    assert replay.propose(5, 12) == replay.propose(5, 12)
    assert replay.propose(5, 12) != replay.propose(6, 12)
    assert replay.propose(5, 12) == filled().propose(5, 12)
    assert replay.propose(5, 12) != filled(seed=1).propose(5, 12)


def test_no_question_is_proposed_twice_and_all_have_their_live_trajectories():
    replay = filled()
    proposal = replay.propose(2, 24)
    assert sorted(ids_of(proposal)) == sorted(f"q{n}" for n in range(12))
    for question in proposal.questions:
        n = int(question.question_id[1:])
        assert question.bucket == len(question.candidates) == 1 + n % (K - 1)
        assert all(candidate.policy_step == 1 and candidate.uses == 0 for candidate in question.candidates)


def test_too_little_experience_gives_what_there_is_and_counts_the_rest():
    proposal = filled(3).propose(2, 12)
    assert (proposal.requested, len(proposal.questions), proposal.shortfall) == (6, 3, 3)
    assert in_memory().propose(1, 12).shortfall == 6


def test_a_step_that_is_committed_is_not_proposed_again():
    with pytest.raises(StepOrderError, match=r"a step after 1(?s:.*)hint"):
        filled().propose(1, 4)


def draws(replay, num_questions, rounds):
    counts, probability = Counter(), {}
    for step in range(2, 2 + rounds):
        for question in replay.propose(step, num_questions).questions:
            counts[question.question_id] += 1
            probability[question.question_id] = question.probability
    return counts, probability


def chi_square(counts, probability, total):
    return sum((counts[key] - total * p) ** 2 / (total * p) for key, p in probability.items())


@pytest.mark.parametrize("sampling", ["gaussian", "uniform"])
def test_single_draws_come_as_often_as_their_probabilities_say(sampling):
    replay = filled(12, replay_ratio=0.5, question_sampling=sampling)
    counts, probability = draws(replay, 2, 3000)
    assert sum(probability.values()) == pytest.approx(1)
    assert chi_square(counts, probability, 3000) < 37.4  # chi-square, 11 degrees of freedom, 1 in 10,000
    if sampling == "uniform":
        assert set(probability.values()) == {1 / 12}
    else:
        assert len(set(probability.values())) == 2  # two right of four, or one or three


def test_several_draws_come_as_often_as_their_probabilities_say_while_no_bucket_runs_out():
    # Sixty questions, twenty a bucket, four drawn: five sigma keep every bucket from running out.
    replay = filled(60, replay_ratio=0.5)
    counts, probability = draws(replay, 8, 1500)
    # Draws without replacement vary less than independent ones, so this bound is on the safe side.
    assert chi_square(counts, probability, 1500 * 4) < 113.0  # 59 degrees of freedom, 1 in 30,000


def test_questions_of_medium_difficulty_are_drawn_most_and_a_narrow_gaussian_draws_nothing_else():
    replay = filled(30, replay_ratio=0.5)
    weights = Counter()
    for step in range(2, 400):
        weights.update(question.bucket for question in replay.propose(step, 2).questions)
    assert weights[2] > weights[1]
    assert weights[2] > weights[3]
    narrow = filled(30, replay_ratio=0.5, bucket_sigma=0.01)
    assert {question.bucket for step in range(2, 50) for question in narrow.propose(step, 20).questions} == {2}


def test_a_bucket_that_runs_out_leaves_the_rest_to_others():
    narrow = filled(12, replay_ratio=0.5, bucket_sigma=0.01)
    assert Counter(question.bucket for question in narrow.propose(2, 12).questions)[2] == 4
    assert len(narrow.propose(2, 12).questions) == 6


# ---- choosing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"), [("lowest_entropy", 0), ("highest_entropy", 2), ("latest", None), ("random", None)]
)
def test_the_rule_decides_which_trajectory_is_replayed(rule, expected):
    replay = in_memory(trajectory_selection=rule)
    made = group("q", 3)
    commit(replay, made)
    keys = [experience_id("q", rollout.response_ids) for rollout in made.rollouts[:3]]
    proposal = replay.propose(2, 2)
    plan = replay.choose(proposal, dict(zip(keys, [0.1, 0.2, 0.3], strict=True)))
    chosen = plan.replays[0].experience.id
    assert chosen in keys
    if expected is not None:
        assert chosen == keys[expected]
        assert plan.replays[0].entropy == [0.1, 0.2, 0.3][expected]
    if rule in ("latest", "random"):
        assert replay.choose(proposal, {}).replays[0].experience.id == chosen


def test_a_missing_or_undefined_uncertainty_is_an_error():
    replay = filled()
    proposal = replay.propose(2, 12)
    with pytest.raises(DataError, match=r"number for every candidate(?s:.*)hint"):
        replay.choose(proposal, {})
    with pytest.raises(DataError, match="nan"):
        replay.choose(proposal, {c.id: float("nan") for q in proposal.questions for c in q.candidates})


def test_a_plan_holds_the_payload_and_what_was_measured():
    replay = filled()
    plan = plan_of(replay, 2, 12)
    assert (plan.step, plan.requested, plan.shortfall) == (2, 6, 0)
    for item in plan.replays:
        assert experience_id(item.experience.question_id, item.experience.response_ids) == item.experience.id
        assert item.experience.id in plan.entropies
        assert item.uses == 0


# ---- committing ------------------------------------------------------------------------------------------------------


def test_only_successes_of_partly_solved_groups_are_kept():
    replay = in_memory()
    report = commit(replay, group("none", 0), group("some", 3, first_id=10), group("all", 4, first_id=20))
    assert (report.inserted, report.retired, report.removed) == (3, 1, {})
    status = replay.status()
    assert (status.questions, status.trajectories, status.seen, status.retired) == (1, 3, 3, 1)
    assert status.buckets == (0, 0, 0, 1)
    assert replay.question("none").num_correct == 0


def test_a_replayed_success_counts_as_one_of_the_group():
    replay = in_memory()
    commit(replay, group("q", 2))
    plan = plan_of(replay, 2, 2)
    report = replay.commit(2, [group("q", 3, first_id=50, replayed=plan.replays[0].experience.id)], plan)
    assert report.retired == 1
    assert report.removed == {"retired": 2}
    assert replay.is_retired("q")
    state = replay.question("q")
    assert (state.visits, state.successes, state.num_correct, state.retired_step) == (2, 5, 4, 2)


def test_a_replayed_group_without_new_successes_is_not_worse_than_one_of_k():
    replay = in_memory()
    commit(replay, group("q", 2))
    plan = plan_of(replay, 2, 2)
    replay.commit(2, [group("q", 0, first_id=50, replayed=plan.replays[0].experience.id)], plan)
    assert replay.question("q").num_correct == 1
    assert replay.status().buckets == (0, 1, 0, 0)


def test_a_question_missed_by_all_keeps_its_trajectories_in_the_lowest_bucket():
    replay = in_memory()
    commit(replay, group("q", 2))
    commit(replay, group("q", 0, first_id=50))
    assert replay.status().buckets == (1, 0, 0, 0)
    assert ids_of(replay.propose(3, 2)) == ["q"]


def test_retirement_is_for_good():
    replay = in_memory()
    commit(replay, group("q", 2))
    commit(replay, group("q", 4, first_id=50))
    report = commit(replay, group("q", 1, first_id=90))
    assert report.inserted == 0
    assert replay.is_retired("q")
    assert replay.question("q").retired_step == 2
    assert replay.status().questions == 0


def test_without_retirement_a_solved_question_stays_with_the_easiest():
    replay = in_memory(retirement="never")
    commit(replay, group("q", 2))
    assert commit(replay, group("q", 4, first_id=50)).inserted == 0
    assert replay.status().buckets == (0, 0, 0, 1)
    assert not replay.is_retired("q")


def test_the_same_response_twice_is_kept_once_and_counted():
    replay = in_memory()
    twins = group("q", 1)
    twins = replace(twins, rollouts=(twins.rollouts[0], twins.rollouts[0], *twins.rollouts[2:]))
    report = commit(replay, twins)
    assert (report.inserted, report.duplicates) == (1, 1)
    report = commit(replay, group("q", 1))
    assert (report.inserted, report.duplicates) == (0, 1)
    assert replay.status().trajectories == 1


def test_uses_and_fresh_entropies_are_noted():
    replay = filled(3)
    proposal = replay.propose(2, 4)
    measured = {c.id: 0.01 * n for n, c in enumerate(c for q in proposal.questions for c in q.candidates)}
    plan = replay.choose(proposal, measured)
    groups = [group(i.experience.question_id, 0, replayed=i.experience.id) for i in plan.replays]
    replay.commit(2, groups, plan)
    used = {item.experience.id for item in plan.replays}
    for key, entropy in measured.items():
        usage = replay.usage(key)
        assert (usage.entropy, usage.entropy_step) == (entropy, 2)
        assert (usage.uses, usage.last_used_step) == ((1, 2) if key in used else (0, None))
    for question in replay.propose(3, 4).questions:
        for candidate in question.candidates:
            if candidate.id in measured:
                assert (candidate.entropy, candidate.entropy_step) == (measured[candidate.id], 2)


def test_nothing_is_kept_before_the_start_unless_asked_for():
    waiting = in_memory(start_rule="threshold", start_threshold=0.5)
    report = commit(waiting, group("a", 2))  # exactly at the threshold is not above it
    assert (report.inserted, report.started) == (0, False)
    assert waiting.propose(2, 8).requested == 0
    assert waiting.question("a").visits == 1
    report = commit(waiting, group("b", 3))  # the batch that starts replay is kept
    assert (report.inserted, report.started) == (3, True)
    assert waiting.propose(3, 8).requested == 4
    collecting = in_memory(start_rule="threshold", start_threshold=0.5, collect="from_first_step")
    assert commit(collecting, group("a", 2)).inserted == 2
    assert collecting.propose(2, 8).requested == 0


def test_retirement_does_not_wait_for_the_start():
    waiting = in_memory(start_rule="threshold", start_threshold=0.9)
    commit(waiting, group("a", 4), group("b", 1), group("c", 0))
    assert waiting.is_retired("a")


def test_the_start_looks_at_fresh_questions_only():
    replay = in_memory(start_rule="window", start_threshold=0.5, start_window=1, stop_threshold=0.3)
    commit(replay, group("a", 3), group("b", 3, first_id=10))
    plan = plan_of(replay, 2, 2)
    # Replayed: none of three new rollouts right. Fresh: three of four. Counted together, replay would stop.
    key = plan.replays[0]
    groups = [group("c", 3, first_id=30), group(key.experience.question_id, 0, replayed=key.experience.id)]
    assert replay.commit(2, groups, plan).started


def test_age_uses_and_number_are_limited_where_asked_for_and_the_oldest_leaves():
    aged = in_memory(max_age_steps=2)
    commit(aged, group("q", 1))
    assert commit(aged, group("r", 1, first_id=10)).removed == {}  # in step 3 it will be two steps old
    assert commit(aged, group("s", 0, first_id=20)).removed == {"age": 1}
    assert ids_of(aged.propose(4, 4)) == ["r"]

    used = in_memory(max_uses=1)
    commit(used, group("q", 1))
    plan = plan_of(used, 2, 2)
    report = used.commit(2, [group("q", 0, first_id=9, replayed=plan.replays[0].experience.id)], plan)
    assert report.removed == {"uses": 1}
    assert used.status().questions == 0

    few = in_memory(max_trajectories_per_question=2)
    assert commit(few, group("q", 3)).removed == {"question_limit": 1}
    assert commit(few, group("q", 1, first_id=50)).removed == {"question_limit": 1}
    assert [c.policy_step for c in few.propose(3, 2).questions[0].candidates] == [1, 2]

    capped = in_memory(max_trajectories=4)
    commit(capped, group("a", 3), group("b", 1, first_id=10))
    assert commit(capped, group("c", 2, first_id=20)).removed == {"total_limit": 2}
    assert capped.status().trajectories == 4
    assert len(capped.load([experience_id("a", [0, 1])])) == 1, "what is removed stays readable"


def test_quarantine_keeps_from_replay_and_release_brings_back():
    replay = in_memory()
    commit(replay, group("q", 2))
    keys = [candidate.id for candidate in replay.propose(2, 2).questions[0].candidates]
    replay.quarantine(keys[:1], "doubtful")
    assert [candidate.id for candidate in replay.propose(2, 2).questions[0].candidates] == keys[1:]
    replay.quarantine(keys, "doubtful")
    assert (replay.status().questions, replay.status().trajectories) == (0, 0)
    assert replay.propose(2, 2).questions == ()
    replay.release(keys)
    assert [candidate.id for candidate in replay.propose(2, 2).questions[0].candidates] == keys
    with pytest.raises(DataError, match="hint"):
        replay.quarantine(["nobody"], "doubtful")


def test_a_quarantined_trajectory_does_not_age_out_of_sight():
    replay = in_memory(max_age_steps=2)
    commit(replay, group("q", 1))
    key = replay.propose(2, 2).questions[0].candidates[0].id
    replay.quarantine([key], "doubtful")
    for step in range(2, 6):
        commit(replay, group(f"r{step}", 0, first_id=10 * step))
    replay.release([key])
    assert commit(replay, group("z", 0, first_id=90)).removed == {"age": 1}


def bad(**changes):
    made = group("q", 2)
    return replace(made, rollouts=(rollout(True, **changes), *made.rollouts[1:]))


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([group("q", 2, size=3)], "4 rollouts"),
        ([group("q", 2), group("q", 1, first_id=9)], "each question once"),
        ([group("q", 1, replayed="nobody")], "each replay of the plan"),
        ([bad(behaviour_log_probs=np.array([-1.0], dtype=np.float32))], "as many log-probs"),
        ([bad(ids=())], "at least one"),
        ([bad(behaviour_log_probs=np.array([-1, np.nan, -1], dtype=np.float32))], "finite behaviour log-probs"),
        ([bad(behaviour_log_probs=np.array([-1, 0.5, -1], dtype=np.float32))], "at most 0"),
        ([bad(behaviour_log_probs=None)], "success worth keeping"),
        ([bad(entropy=None)], "success worth keeping"),
        ([bad(entropy=float("inf"))], "finite mean entropy"),
        ([bad(entropy=-1.0)], "at least 0"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_and_changes_nothing(groups, says):
    replay = filled()
    before = replay.status()
    with pytest.raises(DataError, match=rf"{says}(?s:.*)hint: ."):
        replay.commit(2, groups, no_plan(2))
    assert replay.status() == before


def test_rollouts_that_are_not_kept_need_no_log_probs():
    replay = in_memory()
    unmeasured = [
        replace(made, rollouts=tuple(replace(r, behaviour_log_probs=None, mean_entropy=None) for r in made.rollouts))
        for made in (group("all", 4), group("none", 0, first_id=10))
    ]
    assert commit(replay, *unmeasured).retired == 1


def test_a_plan_must_be_carried_out_whole_and_in_its_step():
    replay = filled()
    plan = plan_of(replay, 2, 12)
    with pytest.raises(DataError, match="each replay of the plan"):
        replay.commit(2, [group("new", 2, first_id=500)], plan)
    with pytest.raises(DataError, match=r"plan of step 3(?s:.*)hint"):
        replay.commit(3, [group("new", 2, first_id=500)], plan)
    assert isinstance(plan, ReplayPlan)


def test_settings_that_cannot_work_never_open_a_store(tmp_path):
    with pytest.raises(ConfigError):
        in_memory(replay_ratio=1.0)
    assert list(tmp_path.iterdir()) == []
