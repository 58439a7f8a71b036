"""What to keep and what to replay: the part of ExGRPO that knows no trainer, no model and no tokenizer.

settings = ReplaySettings(num_rollouts=8, replay_ratio=0.5)
with ExperienceReplay.open("experience.sqlite", settings, identity=identity, seed=0) as replay:
    proposal = replay.propose(step, num_questions=128)      # which questions, with their candidates
    entropies = ...                                         # score replay.load(candidate ids) with your model
    plan = replay.choose(proposal, entropies)               # which trajectory of each
    groups = ...                                            # generate K, or K - 1 and the replayed one, and judge
    replay.commit(step, groups, plan)                       # all or nothing
"""

from exgrpo.experience.buckets import bucket_weights
from exgrpo.experience.codec import SCHEMA_VERSION, experience_id, question_id
from exgrpo.experience.replay import ExperienceReplay
from exgrpo.experience.settings import ReplaySettings
from exgrpo.experience.sqlite import SQLiteStore
from exgrpo.experience.store import Event, ExperienceStore, MemoryStore, StepChanges, StoreIdentity, TrajectoryRow

__all__ = [
    "SCHEMA_VERSION",
    "Event",
    "ExperienceReplay",
    "ExperienceStore",
    "MemoryStore",
    "ReplaySettings",
    "SQLiteStore",
    "StepChanges",
    "StoreIdentity",
    "TrajectoryRow",
    "bucket_weights",
    "experience_id",
    "question_id",
]
