"""Whatever happens, in whatever order: the file, the memory and a plain dictionary tell the same story."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exgrpo.experience import ExperienceReplay, experience_id

from .helpers import IDENTITY, K, everything, group, settings

QUESTIONS = [f"q{n}" for n in range(6)]


class Model:
    """What should be known, by the rules of the paper, in dictionaries."""

    def __init__(self):
        self.step = 0
        self.latest = {}  # question -> right answers in its latest group
        self.retired = set()
        self.stored = {}  # id -> [question, step, uses, removed, quarantined]

    def live(self, question=None):
        return [
            key
            for key, (owner, _, _, removed, quarantined) in self.stored.items()
            if not removed and not quarantined and (question is None or owner == question)
        ]

    def drawable(self):
        return {question for question in self.latest if question not in self.retired and self.live(question)}

    def commit(self, groups, replayed, limits):
        self.step += 1
        for made in groups:
            self.latest[made.question_id] = made.num_correct
            if made.question_id in self.retired:
                continue
            if made.num_correct == K:
                self.retired.add(made.question_id)
                for key in self.live(made.question_id):
                    self.stored[key][3] = "retired"
            else:
                for rollout in made.rollouts:
                    key = experience_id(made.question_id, rollout.response_ids)
                    if rollout.correct and key not in self.stored:
                        self.stored[key] = [made.question_id, self.step, 0, None, None]
        for key in replayed:
            self.stored[key][2] += 1
        self.keep(limits, replayed, groups)

    def keep(self, limits, replayed, groups):
        for key in self.live():
            if limits["max_age_steps"] and self.step + 1 - self.stored[key][1] > limits["max_age_steps"]:
                self.stored[key][3] = "age"
        for key in replayed:
            if limits["max_uses"] and not self.stored[key][3] and self.stored[key][2] >= limits["max_uses"]:
                self.stored[key][3] = "uses"
        fresh_owners = {owner for owner, step, *_ in self.stored.values() if step == self.step}
        for question in fresh_owners:
            self.drop_oldest(self.live(question), limits["max_trajectories_per_question"], "question_limit")
        self.drop_oldest(self.live(), limits["max_trajectories"], "total_limit")

    def drop_oldest(self, keys, limit, reason):
        for key in keys[: max(len(keys) - limit, 0)] if limit else []:
            self.stored[key][3] = reason


class ExperienceMachine(RuleBasedStateMachine):
    @initialize(
        limits=st.fixed_dictionaries(
            {
                "max_age_steps": st.sampled_from([None, 3]),
                "max_uses": st.sampled_from([None, 2]),
                "max_trajectories_per_question": st.sampled_from([None, 2]),
                "max_trajectories": st.sampled_from([None, 7]),
            }
        )
    )
    def begin(self, limits):
        self.limits = limits
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model()
        self.past = {0: copy.deepcopy(self.model)}
        self.memory = self.open(None)
        self.file = self.open(Path(self.folder.name) / "x.sqlite")

    def open(self, path):
        return ExperienceReplay.open(path, settings(**self.limits), identity=IDENTITY, seed=3)

    def teardown(self):
        if hasattr(self, "file"):
            self.file.close()
            self.folder.cleanup()

    @rule(
        counts=st.lists(st.integers(0, K), min_size=1, max_size=3),
        first_id=st.integers(0, 40),
        first_question=st.integers(0, 5),
    )
    def commit(self, counts, first_id, first_question):
        step = self.model.step + 1
        plans = []
        for replay in (self.memory, self.file):
            proposal = replay.propose(step, 4)
            plans.append(replay.choose(proposal, {c.id: c.entropy for q in proposal.questions for c in q.candidates}))
        replayed = {item.experience.question_id: item.experience.id for item in plans[0].replays}
        assert replayed == {item.experience.question_id: item.experience.id for item in plans[1].replays}
        assert set(replayed) <= self.model.drawable()
        assert len(replayed) == min(2, len(self.model.drawable()))
        fresh = [QUESTIONS[(first_question + n) % 6] for n in range(3)]
        groups = [
            group(question, correct, first_id=first_id)
            for question, correct in zip(fresh, counts, strict=False)
            if question not in replayed
        ]
        groups += [
            group(question, min(counts[0], K - 1), first_id=first_id + 9, replayed=key)
            for question, key in replayed.items()
        ]
        reports = [
            replay.commit(step, groups, plan) for replay, plan in zip((self.memory, self.file), plans, strict=True)
        ]
        assert reports[0] == reports[1]
        self.model.commit(groups, list(replayed.values()), self.limits)
        self.past[step] = copy.deepcopy(self.model)

    @rule()
    def reopen(self):
        self.file.close()
        self.file = self.open(Path(self.folder.name) / "x.sqlite")

    @precondition(lambda self: self.model.step > 0)
    @rule(data=st.data())
    def roll_back(self, data):
        step = data.draw(st.integers(0, self.model.step))
        for replay in (self.memory, self.file):
            replay.roll_back(step)
        if step < self.model.step:
            self.model = copy.deepcopy(self.past[step])

    @precondition(lambda self: self.model.live())
    @rule(data=st.data())
    def quarantine(self, data):
        key = data.draw(st.sampled_from(self.model.live()))
        for replay in (self.memory, self.file):
            replay.quarantine([key], "doubtful")
        self.model.stored[key][4] = "doubtful"
        self.past[self.model.step] = copy.deepcopy(self.model)

    @precondition(lambda self: any(entry[4] for entry in self.model.stored.values()))
    @rule()
    def release(self):
        keys = [key for key, entry in self.model.stored.items() if entry[4]]
        for replay in (self.memory, self.file):
            replay.release(keys)
        for key in keys:
            self.model.stored[key][4] = None
        self.past[self.model.step] = copy.deepcopy(self.model)

    @invariant()
    def file_memory_and_model_agree(self):
        assert everything(self.file._store) == everything(self.memory._store)
        status = self.file.status()
        assert status == self.memory.status()
        assert (status.step, status.seen, status.retired) == (
            self.model.step,
            len(self.model.latest),
            len(self.model.retired),
        )
        assert status.trajectories == len(self.model.live())
        assert status.questions == len(self.model.drawable())
        for question in self.model.drawable():
            assert self.file.question(question).num_correct == self.model.latest[question]
        for key, (_, _, uses, removed, quarantined) in self.model.stored.items():
            usage = self.file.usage(key)
            assert (usage.uses, usage.removed, usage.quarantined) == (uses, removed, quarantined)


TestExperience = ExperienceMachine.TestCase
TestExperience.settings = hypothesis_settings(max_examples=30, stateful_step_count=20, deadline=None)
