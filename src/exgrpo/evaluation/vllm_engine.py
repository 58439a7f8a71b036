"""Responses of an evaluation by vLLM, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exgrpo.errors import ConfigError
from exgrpo.evaluation.engines import Sampling
from exgrpo.evaluation.generate import Prompt, Response, prompt_ids


class VLLMEngine:
    """Samples with vLLM's own scheduler.

    Args:
        model: a model folder or hub id.
        settings: further arguments of `vllm.LLM`, such as tensor_parallel_size or max_model_len.

    Raises:
        ConfigError: where vLLM is not installed.
    """

    def __init__(self, model: str, **settings: Any):
        try:
            import vllm
        except ImportError as error:
            raise ConfigError(
                "engine", expected="vLLM", found="not installed", hint="pip install vllm, or use --engine transformers"
            ) from error
        self._vllm = vllm
        # The model's generation_config.json would change the distribution (a repetition penalty, a top-p).
        self._llm = vllm.LLM(model=model, generation_config="vllm", **settings)
        self._tokenizer = self._llm.get_tokenizer()

    def sample(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Response]]:
        """Return [Q][num_samples] responses (see `Engine`)."""
        parameters = self._vllm.SamplingParams(
            n=sampling.num_samples,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_new_tokens,
            seed=sampling.seed,
        )
        ids = [{"prompt_token_ids": prompt_ids(self._tokenizer, prompt)} for prompt in prompts]
        outputs = self._llm.generate(ids, parameters, use_tqdm=False)
        return [[self._response(completion) for completion in output.outputs] for output in outputs]

    def _response(self, completion: Any) -> Response:
        ids = tuple(completion.token_ids)
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        return Response(text, ids, truncated=completion.finish_reason == "length")
