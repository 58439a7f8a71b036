"""Everything of TRL that is not public: the methods we override and the attributes we read, under names of our own.

`HookedGRPOTrainer` turns TRL's private call path into five hooks. The rest of this package uses the hooks and the
accessors only, so that a new TRL release is answered in this file. `check_trl` compares the installed version.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packaging.version import Version
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput
from trl import GRPOTrainer
from trl.data_utils import is_conversational

from exgrpo.errors import ConfigError
from exgrpo.types import Verdict

TRL_RANGE = (Version("1.16"), Version("1.17"))

# Method -> parameters that we rely on, in this order.
OVERRIDDEN_METHODS: dict[str, tuple[str, ...]] = {
    "_prepare_inputs": ("self", "generation_batch"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_generate": ("self", "prompts"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": ("self", "model", "input_ids", "attention_mask", "logits_to_keep"),
    "_compute_loss": ("self", "model", "inputs"),
    "_load_from_checkpoint": ("self", "resume_from_checkpoint"),
}
PRIVATE_ATTRIBUTES = (
    *("_step", "_metrics", "_tokenizer", "_buffered_inputs", "_pending_extra_logs"),
    *("eos_token_ids", "reward_weights"),
)


def quiet_known_warnings() -> None:
    """Keep warnings from a user's screen that only TRL can act on: it still asks for an attribute by its old name."""
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing. is deprecated", category=FutureWarning)


def check_trl() -> None:
    """Raise a ConfigError unless the installed TRL is one whose private call path we know."""
    installed = Version(version("trl"))
    if not TRL_RANGE[0] <= installed < TRL_RANGE[1]:
        raise ConfigError(
            "trl",
            expected=f">={TRL_RANGE[0]},<{TRL_RANGE[1]}, the versions this adapter is tested with",
            found=str(installed),
            hint=f"pip install 'trl>={TRL_RANGE[0]},<{TRL_RANGE[1]}'",
        )
    for name, parameters in OVERRIDDEN_METHODS.items():
        found = tuple(inspect.signature(getattr(GRPOTrainer, name)).parameters)[: len(parameters)]
        if found != parameters:
            raise ConfigError(
                f"trl.GRPOTrainer.{name}",
                expected=f"parameters {parameters}",
                found=found,
                hint="this TRL was changed after its release; reinstall it",
            )


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRow:
    """A row of the generation batch that is not generated, because a past policy wrote it.

    Attributes:
        prompt_ids: [P] recorded prompt token ids.
        response_ids: [T] recorded response token ids.
        log_probs: float32 [T], log-probs under the past policy.
        reward: recorded reward.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    log_probs: np.ndarray
    reward: float


@dataclass(frozen=True, slots=True)
class GeneratedRows:
    """The rows of a generation batch once they are written and judged, in the order of `compose_rows`.

    Attributes:
        prompt_ids: [B][P] token ids.
        response_ids: [B][T] token ids, end token included.
        rewards: float32 [B], weighted sum over reward functions, NaN where none applied.
        verdicts: [B], what a reward function has logged as `verdict`, None for recorded rows; empty where none does.
    """

    prompt_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: torch.Tensor
    verdicts: list[Verdict | None]


class HookedGRPOTrainer(GRPOTrainer):
    """TRL's trainer with five hooks: compose_rows, rows_measured, rows_ready, micro_batches and policy_loss."""

    _recorded: Mapping[int, RecordedRow] = {}
    _generating = False
    _dealt = True
    _buffered_inputs: list[dict[str, Any]]
    generation_s = 0.0  # seconds that the latest generation batch took to be written and judged

    # ---- hooks, implemented by ExGRPOTrainer -------------------------------------------------------------------------

    def compose_rows(self, num_rows: int) -> tuple[list[dict[str, Any]], dict[int, RecordedRow]]:
        """Return the data set rows of the next generation batch [B] and, by position, those that are not generated."""
        raise NotImplementedError

    def rows_ready(self, rows: GeneratedRows, output: dict[str, Any]) -> dict[str, Any]:
        """Return TRL's generation batch with what the loss needs besides; called when rows are written and judged."""
        raise NotImplementedError

    def rows_measured(self, log_probs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Take log-probs and entropies [B, T] of a generation batch under the policy that wrote it."""
        raise NotImplementedError

    def policy_loss(
        self, log_probs: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor, inputs: dict[str, Any]
    ) -> torch.Tensor:
        """Return the loss of a micro-batch, accumulation included, from its training forward [B, T]."""
        raise NotImplementedError

    def micro_batches(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the micro-batches of one update, as many as TRL has split its rows into."""
        raise NotImplementedError

    # ---- TRL's private call path -------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        rows, self._recorded = self.compose_rows(len(inputs))
        self._generating = True
        began = time.perf_counter()
        try:
            output = super()._generate_and_score_completions(rows)
        finally:
            self.generation_s = time.perf_counter() - began
            self._generating = False
            self._recorded = {}
        self._dealt = False
        return self.rows_ready(self._generated, output)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        inputs = super()._prepare_inputs(generation_batch)
        if not self._dealt:
            self._dealt = True
            # TRL has shuffled the rows and split them. Which rows go into which update stays as it is.
            size = min(self.args.steps_per_generation, self.args.gradient_accumulation_steps)
            starts = range(0, self.args.steps_per_generation, size)
            updates = [self._buffered_inputs[first : first + size] for first in starts]
            self._buffered_inputs = [batch for chunks in updates for batch in self.micro_batches(chunks)]
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        kept = [prompt for row, prompt in enumerate(prompts) if row not in self._recorded]
        prompt_ids, response_ids, tool_mask, texts, log_probs, extra, images, tool_images = super()._generate(kept)
        recorded = self._recorded
        if recorded:
            prompt_ids = _splice(prompt_ids, {row: record.prompt_ids for row, record in recorded.items()})
            response_ids = _splice(response_ids, {row: record.response_ids for row, record in recorded.items()})
            texts = _splice(texts, self._recorded_completions(is_conversational({"prompt": prompts[0]})))
        self._generated = GeneratedRows(prompt_ids, response_ids, torch.empty(0), [])
        return prompt_ids, response_ids, tool_mask, texts, log_probs, extra, images, tool_images

    def _recorded_completions(self, conversational: bool) -> dict[int, Any]:
        ids = [record.response_ids for record in self._recorded.values()]
        texts = self.processing_class.batch_decode(ids, skip_special_tokens=True)
        if conversational:
            texts = [[{"role": "assistant", "content": text}] for text in texts]
        return dict(zip(self._recorded, texts, strict=True))

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> torch.Tensor:
        kept = [row for row in range(len(prompts)) if row not in self._recorded]
        columns = [[column[row] for row in kept] for column in (inputs, prompts, completions, completion_ids_list)]
        rewards: torch.Tensor = super()._calculate_rewards(*columns)
        if self._recorded:
            rewards = self._with_recorded_rewards(rewards, kept, len(prompts))
            for name, values in self._pending_extra_logs.items():
                self._pending_extra_logs[name] = _splice(values, dict.fromkeys(self._recorded))
        if self._generating:
            weighted = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
            weighted[rewards.isnan().all(dim=1)] = torch.nan
            verdicts = list(self._pending_extra_logs.get("verdict", []))
            self._generated = dataclasses.replace(self._generated, rewards=weighted, verdicts=verdicts)
        return rewards

    def _with_recorded_rewards(self, rewards: torch.Tensor, kept: list[int], num_rows: int) -> torch.Tensor:
        # The record holds the total reward. It stands in the first column that counts, divided by the column's weight,
        # and the others are NaN, which TRL leaves out of the sum.
        column = int(self.reward_weights.nonzero()[0])
        full = rewards.new_full((num_rows, rewards.size(1)), torch.nan)
        full[kept] = rewards
        for row, record in self._recorded.items():
            full[row, column] = record.reward / self.reward_weights[column]
        return full

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        if not self._generating:
            return super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        # TRL scores the new rows once more when a batch serves several updates. The policy has not moved since it wrote
        # them, so the entropies of that forward are those at collection: asking for them saves a forward.
        kwargs["compute_entropy"] = True
        log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        self.rows_measured(log_probs, entropies)
        return log_probs, entropies, aux_loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        log_probs, entropies = self.token_statistics(model, inputs)
        return self.policy_loss(log_probs, entropies, inputs["completion_mask"].bool(), inputs)

    # ---- a run that had come to its end ------------------------------------------------------------------------------

    def is_finished(self, folder: Path) -> bool:
        """Return whether a checkpoint stands at the last step; transformers would take one more from there."""
        state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        if self.args.max_steps > 0:
            return bool(state.global_step >= self.args.max_steps)
        return bool(state.global_step >= state.max_steps and self.args.num_train_epochs <= state.num_train_epochs)

    def load_finished(self, folder: Path) -> TrainOutput:
        """Take the weights and the state of a checkpoint, without training."""
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))
        return TrainOutput(self.state.global_step, math.nan, {})

    # ---- accessors ---------------------------------------------------------------------------------------------------

    def token_statistics(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropies [B, T] of the responses in `inputs`, in nats; 0 at padding."""
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention_mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        log_probs, entropies, _ = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, inputs["completion_ids"].size(1), compute_entropy=True
        )
        return log_probs, entropies

    def log_values(self, values: Mapping[str, float]) -> None:
        """Add values to the metrics that TRL writes at its next log; averaged there over the updates it covers."""
        mode = "train" if self.model.training else "eval"
        for name, value in values.items():
            self._metrics[mode][name].append(value)

    @property
    def micro_step(self) -> int:
        """Number of micro-batches that have been trained on."""
        return int(self._step)

    @property
    def micro_steps_per_batch(self) -> int:
        """Number of micro-batches between two generations."""
        return int(self.args.steps_per_generation * self.num_iterations)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, also where the processing class is a processor."""
        return self._tokenizer

    def is_truncated(self, response_ids: Sequence[int]) -> bool:
        """Return whether a response stopped at the length limit, that is without an end token."""
        return response_ids[-1] not in (*self.eos_token_ids, self._tokenizer.pad_token_id)


def _splice(values: Sequence[Any], inserted: Mapping[int, Any]) -> list[Any]:
    """Return `values` with each of `inserted` placed so that it ends at its position."""
    rest = iter(values)
    return [inserted[row] if row in inserted else next(rest) for row in range(len(values) + len(inserted))]
