"""ExGRPO on TRL: plan, generate, verify, learn, commit. No formula lives here."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from exgrpo.errors import ConfigError, StoreMismatchError
from exgrpo.experience import ExperienceReplay, StoreIdentity
from exgrpo.objective import RowWeights, mixed_policy_loss, row_weights
from exgrpo.train.alarms import Alarms, parse_alarms
from exgrpo.train.batch import StepBatch
from exgrpo.train.batching import deal
from exgrpo.train.checkpoint import CheckpointWriter, ExperienceCheckpoint, last_checkpoint, set_aside_later
from exgrpo.train.compat import GeneratedRows, HookedGRPOTrainer, RecordedRow, check_trl
from exgrpo.train.config import ExGRPOConfig
from exgrpo.train.fresh import FreshQuestions, FreshState
from exgrpo.train.guards import FiniteGuard
from exgrpo.train.questions import check_dataset, question_ids, store_identity
from exgrpo.train.rewards import checked_rewards
from exgrpo.train.scoring import score_candidates
from exgrpo.train.telemetry import step_metrics
from exgrpo.types import Proposal

SCORING_BATCH_FACTOR = (
    4  # without gradients a forward holds no activations: four times the rows fit where training does
)


class ExGRPOTrainer(HookedGRPOTrainer):
    """A `trl.GRPOTrainer` that replays its own past successes (ExGRPO, arXiv 2510.02245).

    Used as `GRPOTrainer` is: same data set columns, same reward functions, with `ExGRPOConfig` for `GRPOConfig`. Each
    generation batch of Q questions holds up to floor(replay_ratio Q) questions from the experience, with K - 1 new
    rollouts and one recorded trajectory each; the rest are fresh questions with K new rollouts.

    Args:
        model: as `GRPOTrainer`.
        reward_funcs: as `GRPOTrainer`. A rollout counts as correct where its total reward reaches
            `args.success_reward`; where a function logs a column `verdict` (`exgrpo.verify.AnswerReward` does), where
            that is `correct`. A replayed trajectory keeps its recorded reward and is not judged again.
        args: an `ExGRPOConfig`.
        train_dataset: a `datasets.Dataset` with a column `prompt`; the other columns go to the reward functions.
        experience: an open `ExperienceReplay` to use. Default: the database at `args.experience_path`.
        **kwargs: whatever else `GRPOTrainer` takes (`eval_dataset`, `processing_class`, `callbacks`, `peft_config`...).

    Raises:
        ConfigError: for settings that cannot work.
        DataError: for a data set that cannot be replayed from.
        StoreError: where the experience database cannot be opened, belongs to another run, or does not match.
    """

    _batch: StepBatch  # of the step under way

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: ExGRPOConfig | None = None,
        train_dataset: Dataset | None = None,
        *,
        experience: ExperienceReplay | None = None,
        **kwargs: Any,
    ):
        check_trl()
        args = ExGRPOConfig("ExGRPO") if args is None else args
        if not isinstance(args, ExGRPOConfig):
            raise ConfigError(
                "args", expected="an ExGRPOConfig", found=type(args).__name__, hint="from exgrpo import ExGRPOConfig"
            )
        for name in ("tools", "environment_factory", "rollout_func"):
            if kwargs.get(name):
                raise ConfigError(
                    name,
                    expected="nothing: a record holds one prompt and one response",
                    found="a value",
                    hint="leave it out, or train with trl.GRPOTrainer",
                )
        check_dataset(train_dataset)
        ids = question_ids(train_dataset, args)
        self.fresh_questions = FreshQuestions(
            ids, shuffle=args.shuffle_dataset, seed=args.seed, batch_questions=args.num_questions
        )
        super().__init__(model, checked_rewards(reward_funcs), args=args, train_dataset=train_dataset, **kwargs)
        self._check_model()
        self._objective = args.objective_settings()
        self._fresh_state = self.fresh_questions.state  # after the last commit; a batch under way is not part of it
        self._seconds: dict[str, float] = {}
        self._alarms = Alarms(parse_alarms(args.alarms))
        self._guard = FiniteGuard(self, args.max_skipped_updates)
        self.add_callback(self._guard)
        self.add_callback(CheckpointWriter(self))
        self.experience = experience or self._open_experience(store_identity(args, self.tokenizer, ids, reward_funcs))

    def _check_model(self) -> None:
        if not isinstance(self.processing_class, PreTrainedTokenizerBase):
            raise ConfigError(
                "processing_class",
                expected="a tokenizer: experience records hold token ids only",
                found=type(self.processing_class).__name__,
                hint="train a text model, or use trl.GRPOTrainer",
            )
        if self.aux_loss_enabled:
            raise ConfigError(
                "router_aux_loss_coef",
                expected="0: the mixed objective has no load-balancing term",
                found=self.router_aux_loss_coef,
                hint="set router_aux_loss_coef to 0",
            )

    def _open_experience(self, identity: StoreIdentity) -> ExperienceReplay:
        args = self.args
        default = Path(args.output_dir) / "experience.sqlite"
        return ExperienceReplay.open(
            None if args.experience_path == ":memory:" else args.experience_path or default,
            args.replay_settings(),
            identity=identity,
            seed=args.seed,
            log_prob_dtype=args.log_prob_dtype,
        )

    # ---- go on where a run stopped -----------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train as `GRPOTrainer.train` does; a resumed run takes experience and fresh questions back to the checkpoint.

        Raises:
            ConfigError: where the output directory holds the experience of an earlier run that is not resumed, or no
                run to resume.
            StoreError: where checkpoint and experience do not belong together.
        """
        resume = resume_from_checkpoint or self.args.resume_from_checkpoint
        if resume:
            folder = last_checkpoint(self.args.output_dir) if resume is True else Path(str(resume))
            # A run that stopped before its first checkpoint begins again.
            checkpoint = (
                ExperienceCheckpoint(0, FreshState(), {}) if folder is None else ExperienceCheckpoint.read(folder)
            )
            self.experience.roll_back(checkpoint.step)
            set_aside_later(self.args.output_dir, folder)
            self.fresh_questions.state = self._fresh_state = checkpoint.fresh
            self._alarms.restore(checkpoint.alarms)
            if folder is not None and self.is_finished(folder):
                return self.load_finished(folder)
            return super().train(resume_from_checkpoint=None if folder is None else str(folder), **kwargs)
        if self.args.experience_path is None and self.experience.status().step > 0:
            raise ConfigError(
                "output_dir",
                expected="a directory without experience",
                found=f"the experience of an earlier run in {self.args.output_dir}",
                hint="resume that run, name another output_dir, or name its experience as experience_path to go on "
                "from it",
            )
        return super().train(**kwargs)

    def save_experience_state(self, folder: Path) -> None:
        """Add to a checkpoint's folder where experience and fresh questions stand; TRL's files know nothing of them."""
        ExperienceCheckpoint(self.experience.status().step, self._fresh_state, self._alarms.state()).write(folder)

    # ---- plan --------------------------------------------------------------------------------------------------------

    def compose_rows(self, num_rows: int) -> tuple[list[dict[str, Any]], dict[int, RecordedRow]]:
        """Plan the next step and return its data set rows [B] and those that are not generated, by position."""
        self._seconds = {}
        step = self.experience.status().step + 1
        num_questions = num_rows // self.num_generations
        with self._timed("time/plan_s"):
            # An alarm may want no replay for a while; successes are collected all the same.
            asked = 0 if self._alarms.on_policy else num_questions
            proposal = self.experience.propose(step, asked)
        with self._timed("time/score_s"):
            entropies = self._entropies(proposal)
        with self._timed("time/plan_s"):
            plan = self.experience.choose(proposal, entropies)
            if self.args.entropy_scoring == "cached":
                # Known values are no measurement of this step: the commit notes those of the training forward instead.
                plan = dataclasses.replace(plan, entropies={})
            fresh_ids = self.fresh_questions.take(
                num_questions - len(plan.replays),
                busy={replay.experience.question_id for replay in plan.replays},
                retired=self.experience.is_retired if self.args.retired_leave_fresh else lambda _: False,
            )
        num_candidates = sum(len(question.candidates) for question in proposal.questions)
        self._batch = StepBatch(plan, fresh_ids, self.num_generations, num_candidates)
        rows = [self.train_dataset[self.fresh_questions.row(question)] for question in self._batch.question_ids]
        return [row for row in rows for _ in range(self.num_generations)], self._batch.recorded()

    def _entropies(self, proposal: Proposal) -> dict[str, float]:
        candidates = [candidate for question in proposal.questions for candidate in question.candidates]
        if self.args.entropy_scoring == "cached":
            return {candidate.id: candidate.entropy for candidate in candidates}
        scores = score_candidates(
            self,
            self.experience.load([candidate.id for candidate in candidates]),
            measure=self.args.uncertainty,
            batch_size=SCORING_BATCH_FACTOR * self.args.per_device_train_batch_size,
        )
        # A forward that broke down says nothing of a trajectory: what was known of it before stands.
        return {c.id: scores[c.id] if math.isfinite(scores[c.id]) else c.entropy for c in candidates}

    # ---- generate and verify -----------------------------------------------------------------------------------------

    def rows_measured(self, log_probs: torch.Tensor, entropies: torch.Tensor) -> None:
        """Keep what the forward before several updates says of the new rows."""
        lengths = torch.tensor([len(ids) for ids in self._generated.response_ids], device=log_probs.device)
        mask = torch.arange(log_probs.size(1), device=log_probs.device) < lengths.unsqueeze(1)
        self._batch.capture(torch.arange(len(lengths)), log_probs, entropies, mask)

    def rows_ready(self, rows: GeneratedRows, output: dict[str, Any]) -> dict[str, Any]:
        """Add to TRL's generation batch: which rows are replayed, and their recorded log-probs."""
        batch = self._batch
        batch.set_generated(rows)
        self._check_prompts(batch, rows)
        old_log_probs = output.pop("old_per_token_logps", None)
        behaviour = torch.zeros(output["completion_ids"].shape) if old_log_probs is None else old_log_probs.float()
        behaviour = behaviour.to(output["completion_ids"].device)
        replayed = torch.zeros(len(behaviour), dtype=torch.bool, device=behaviour.device)
        for row, record in batch.recorded().items():
            replayed[row] = True
            behaviour[row] = 0.0
            behaviour[row, : len(record.log_probs)] = torch.from_numpy(record.log_probs.copy())
        output["row"] = torch.arange(len(behaviour), device=behaviour.device)
        output["replayed"] = replayed
        needed = torch.tensor(batch.needed_groups(self.args.success_reward), device=behaviour.device)
        output["needed"] = needed.repeat_interleave(self.num_generations)
        output["behaviour_log_probs"] = behaviour
        # Whether fresh rows have log-probs of their own, or those of the training forward are theirs; per row, because
        # TRL shuffles and splits whatever has one entry a row.
        output["behaviour_known"] = replayed if old_log_probs is None else torch.ones_like(replayed)
        return output

    def _check_prompts(self, batch: StepBatch, rows: GeneratedRows) -> None:
        for row, replay in batch.recorded_rows.items():
            if rows.prompt_ids[row] != list(rows.prompt_ids[row - 1]):
                raise StoreMismatchError(
                    f"question {replay.experience.question_id}",
                    expected="the recorded prompt ids",
                    found="other ids from today's tokenizer, template or data set",
                    hint="use the tokenizer, template and data of the run that filled the store, or an empty store",
                )

    def micro_batches(self, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Fix by how much each row counts, as TRL's own micro-batches say, then deal rows for speed."""
        for chunk in chunks:
            num_tokens = chunk["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
            weights = row_weights(
                chunk["completion_mask"].bool(), self._objective, num_tokens / self.args.steps_per_generation
            )
            chunk |= {"policy_weight": weights.policy, "entropy_weight": weights.entropy}
        has_bonus = self.args.entropy_coef != 0 and self.args.bonus_on_useless_rows
        return deal(chunks, keep_useless=has_bonus)

    # ---- learn -------------------------------------------------------------------------------------------------------

    def policy_loss(
        self, log_probs: torch.Tensor, entropies: torch.Tensor, mask: torch.Tensor, inputs: dict[str, Any]
    ) -> torch.Tensor:
        """Return the mixed loss of a micro-batch, and keep what its forward says of rows not measured yet."""
        training = self.model.training
        accumulated = self.current_gradient_accumulation_steps if training else 1
        none = torch.zeros(len(mask), dtype=torch.bool, device=mask.device)
        loss = mixed_policy_loss(
            log_probs=log_probs,
            entropies=entropies,
            response_mask=mask,
            advantages=inputs["advantages"],
            replayed=inputs.get("replayed", none),
            behaviour_log_probs=inputs.get("behaviour_log_probs", log_probs.detach()),
            behaviour_known=inputs.get("behaviour_known", none),
            settings=self._objective,
            weights=RowWeights(inputs["policy_weight"], inputs["entropy_weight"])
            if training
            else row_weights(mask, self._objective, inputs["num_items_in_batch"].clamp(min=1)),
        )
        self.log_values({"entropy": loss.entropy.item(), "policy_loss": loss.policy_loss.item()})
        if training:
            self._batch.capture(inputs["row"], log_probs, entropies, mask)
            self._batch.note_ratios(loss, inputs["replayed"], mask)
            questions = [self._batch.question_ids[row // self.num_generations] for row in inputs["row"].tolist()]
            values = {"loss": loss.loss, "log-probs": log_probs, "importance ratios": loss.log_ratios}
            self._guard.look_at(values, mask, questions, inputs["replayed"])
        return loss.loss / accumulated

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on a micro-batch; after the last one of a generation batch, commit the step."""
        with self._timed("time/training_s"):
            loss: torch.Tensor = super().training_step(*args, **kwargs)
        if self.micro_step % self.micro_steps_per_batch == 0:
            self._commit()
        return loss

    # ---- commit ------------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        batch = self._batch
        groups = batch.groups(success_reward=self.args.success_reward, is_truncated=self.is_truncated)
        plan = batch.plan
        if self.args.entropy_scoring == "cached":
            plan = dataclasses.replace(plan, entropies=batch.replayed_entropies())
        with self._timed("time/commit_s"):
            report = self.experience.commit(plan.step, groups, plan)
        self._fresh_state = self.fresh_questions.state
        metrics = step_metrics(batch, groups, report, self.experience.status())
        self.log_values(metrics | self._alarms.look_at(plan.step, metrics) | self._phases())

    def _phases(self) -> dict[str, float]:
        """Seconds of the step by phase. TRL plans and generates inside the training step of the first micro-batch."""
        training = self._seconds.pop("time/training_s")
        before_learning = self._seconds["time/plan_s"] + self._seconds["time/score_s"] + self.generation_s
        return {
            **self._seconds,
            "time/generate_s": self.generation_s,
            "time/learn_s": training - before_learning,
            "time/step_s": training + self._seconds["time/commit_s"],
        }

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - began
