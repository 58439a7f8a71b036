"""Is the answer right: verdicts, verifiers, and a pool of workers that can be killed. Knows no model and no trainer."""

from exgrpo.verify.judge import Judge, open_judge
from exgrpo.verify.pool import VerifierPool
from exgrpo.verify.registry import Verifier, build_verifier, verifier_id
from exgrpo.verify.rewards import AnswerReward, reward_functions
from exgrpo.verify.settings import VerifySettings

__all__ = [
    "AnswerReward",
    "Judge",
    "Verifier",
    "VerifierPool",
    "VerifySettings",
    "build_verifier",
    "open_judge",
    "reward_functions",
    "verifier_id",
]
