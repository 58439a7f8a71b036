"""vLLM as the engine of an evaluation: runs where it is installed."""

from __future__ import annotations

import importlib.util

import pytest

from exgrpo.assets import chain_base_path
from exgrpo.errors import ConfigError
from exgrpo.evaluation.engines import Sampling
from exgrpo.evaluation.vllm_engine import VLLMEngine
from exgrpo.tasks.chain import is_valid

INSTALLED = importlib.util.find_spec("vllm") is not None


@pytest.mark.skipif(INSTALLED, reason="vLLM is installed")
def test_without_vllm_there_is_one_clear_error():
    with pytest.raises(ConfigError, match=r"(?s)vLLM.*hint: .*--engine transformers"):
        VLLMEngine("any")


@pytest.mark.skipif(not INSTALLED, reason="vLLM is not installed")
def test_vllm_samples_the_policy_with_a_seed():
    engine = VLLMEngine(str(chain_base_path()), dtype="float32", max_model_len=128)
    prompts, three = ["3+7-5=", "1+2-3+4="], Sampling(3, max_new_tokens=60, seed=0, temperature=1.0)
    first = engine.sample(prompts, three)
    assert [len(answers) for answers in first] == [3, 3]
    assert first == engine.sample(prompts, three)
    assert not any(response.truncated for answers in first for response in answers)
    ((greedy,),) = engine.sample(["3+7-5="], Sampling(1, max_new_tokens=60, seed=0, temperature=0.0))
    assert is_valid("3+7-5=", greedy.text)
    ((cut,),) = engine.sample(["3+7-5="], Sampling(1, max_new_tokens=2, seed=0, temperature=0.0))
    assert cut.truncated
    assert cut.num_tokens == 2
