"""Settings of a run: TRL's GRPOConfig, the paper's defaults, and what experience replay adds."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from trl import GRPOConfig

from exgrpo.errors import ConfigError
from exgrpo.experience import ReplaySettings
from exgrpo.objective import ObjectiveSettings
from exgrpo.train.alarms import parse_alarms, read_alarms
from exgrpo.train.telemetry import find_metric

LossType = Literal["dr_grpo", "grpo", "bnpo", "dapo"]


@dataclass
class ExGRPOConfig(GRPOConfig):
    """Arguments of `ExGRPOTrainer`: those of `trl.GRPOConfig`, with the ones below added or given new defaults.

    The defaults are the paper's (arXiv 2510.02245, section 4 and appendix B): Dr.GRPO normalisation, no division by the
    standard deviation, no KL term, a constant learning rate, an entropy bonus of 0.001, half of each batch replayed.

    Raises:
        ConfigError: for a value that cannot work, before a model is loaded.
    """

    # TRL's arguments, with the paper's values as defaults.
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Learning rate schedule."})
    loss_type: LossType = field(default="dr_grpo", metadata={"help": "How the per-token loss is averaged."})
    scale_rewards: str = field(
        default="none", metadata={"help": "Divide advantages by the standard deviation: none, group or batch."}
    )
    entropy_coef: float = field(default=0.001, metadata={"help": "Weight of the entropy bonus."})
    logging_steps: float = field(default=1, metadata={"help": "Log every this many updates."})

    # Replay: what and when.
    replay_ratio: float = field(
        default=0.5, metadata={"help": "Share of a batch's questions that are replayed, in [0, 1). 0 is plain GRPO."}
    )
    question_sampling: Literal["gaussian", "uniform"] = field(
        default="gaussian", metadata={"help": "How questions are drawn: by difficulty bucket, or all alike."}
    )
    bucket_mean: float = field(
        default=0.5, metadata={"help": "Correctness rate at which the bucket weights peak, in [0, 1]."}
    )
    bucket_sigma: float = field(default=1.0, metadata={"help": "Width of the bucket weights, in bucket_sigma_unit."})
    bucket_sigma_unit: Literal["count", "rate"] = field(
        default="count", metadata={"help": "Unit of bucket_sigma: one rollout of the group, or correctness rate."}
    )
    trajectory_selection: Literal["lowest_entropy", "highest_entropy", "random", "latest"] = field(
        default="lowest_entropy", metadata={"help": "Which stored trajectory of a drawn question is replayed."}
    )
    uncertainty: Literal["entropy", "negative_log_prob"] = field(
        default="entropy",
        metadata={"help": "Measure behind trajectory_selection: mean token entropy or mean negative log-probability."},
    )
    entropy_scoring: Literal["exact", "cached"] = field(
        default="exact",
        metadata={"help": "Score candidates under the current policy, or trust the latest known values."},
    )
    start_rule: Literal["threshold", "window", "immediate"] = field(
        default="threshold", metadata={"help": "When replay begins: one batch above, a window's mean above, at once."}
    )
    start_threshold: float = field(default=0.35, metadata={"help": "Pass@1 that fresh rollouts must exceed."})
    start_window: int = field(default=1, metadata={"help": "Batches that start_rule=window averages."})
    stop_threshold: float | None = field(
        default=None, metadata={"help": "With start_rule=window: Pass@1 below which replay pauses again."}
    )
    collect: Literal["after_start", "from_first_step"] = field(
        default="after_start", metadata={"help": "Whether successes are kept before replay begins."}
    )
    retirement: Literal["solved", "never"] = field(
        default="solved", metadata={"help": "Whether a question that all rollouts solve leaves the experience."}
    )
    retired_leave_fresh: bool = field(
        default=False, metadata={"help": "Whether retired questions leave the fresh data as well."}
    )
    max_age_steps: int | None = field(
        default=None, metadata={"help": "Trajectories older than this many steps are not replayed. Default: no limit."}
    )
    max_uses: int | None = field(
        default=None, metadata={"help": "A trajectory is replayed at most this often. Default: no limit."}
    )
    max_trajectories_per_question: int | None = field(
        default=None, metadata={"help": "Trajectories kept for a question; the oldest leave. Default: no limit."}
    )
    max_trajectories: int | None = field(
        default=None, metadata={"help": "Trajectories kept altogether; the oldest leave. Default: no limit."}
    )

    # Replay: how it enters the loss.
    replay_shaping: Literal["ratio", "none", "clip", "sqrt"] = field(
        default="ratio", metadata={"help": "Shape of the replayed importance weight w; ratio is w / (w + beta)."}
    )
    replay_shaping_beta: float = field(default=0.1, metadata={"help": "beta of replay_shaping=ratio."})
    clip_fresh: bool = field(default=True, metadata={"help": "Whether fresh rows keep GRPO's clip."})

    bonus_on_useless_rows: bool = field(
        default=True,
        metadata={
            "help": "Whether the entropy bonus acts on rows of groups with equal rewards, which teach nothing else. "
            "Without, or without a bonus, they are left out of the forward pass."
        },
    )

    # Replay: where it lives.
    experience_path: str | None = field(
        default=None,
        metadata={"help": "Experience database. Default: experience.sqlite in output_dir. ':memory:' keeps no file."},
    )
    log_prob_dtype: Literal["float32", "float16"] = field(
        default="float32", metadata={"help": "Precision of stored behaviour log-probs."}
    )
    question_id_column: str | None = field(
        default=None, metadata={"help": "Column with a stable question id. Default: a hash of prompt and answer."}
    )
    answer_column: str = field(
        default="answer", metadata={"help": "Column with the gold answer; part of the question id where it exists."}
    )
    success_reward: float = field(
        default=1.0, metadata={"help": "A rollout whose reward is at least this counts as correct."}
    )
    verifier: str | None = field(
        default=None,
        metadata={
            "help": "Name and version of what judges answers; goes into the record. Default: what the reward function "
            "calls its verifier, else reward_function@1."
        },
    )

    alarms: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Alarms on metrics over the defaults, a mapping from names to rules (JSON on the command line), "
            "such as {entropy_high: {above: 2.0, clear: 1.5, then: on_policy}}; docs/reliability.md has them."
        },
    )
    max_skipped_updates: int = field(
        default=3,
        metadata={
            "help": "Updates in a row that are skipped because loss, log-probs, ratios or gradients are not finite; "
            "one more stops the run."
        },
    )

    def __post_init__(self) -> None:
        """Check what we add, then let TRL check its own; nothing is loaded before both have passed."""
        self._refuse_bad_groups()
        super().__post_init__()
        self.replay_settings()
        self.objective_settings()
        self._refuse_biased_sampling()
        self._refuse_unsupported()

    @property
    def num_questions(self) -> int:
        """Q: questions in a generation batch over all processes."""
        return int(self.generation_batch_size) // int(self.num_generations)

    def replay_settings(self) -> ReplaySettings:
        """Return the settings of the experience, checked."""
        shared = {item.name for item in fields(ReplaySettings)} - {"num_rollouts"}
        return ReplaySettings(num_rollouts=self.num_generations, **{name: getattr(self, name) for name in shared})

    def objective_settings(self) -> ObjectiveSettings:
        """Return the settings of the loss, checked."""
        return ObjectiveSettings(
            loss_type=self.loss_type,
            clip_low=self.epsilon,
            clip_high=self.epsilon if self.epsilon_high is None else self.epsilon_high,
            clip_fresh=self.clip_fresh,
            shaping=self.replay_shaping,
            shaping_beta=self.replay_shaping_beta,
            entropy_coef=self.entropy_coef,
            max_response_length=self.max_completion_length,
        )

    def _refuse_bad_groups(self) -> None:
        if self.num_generations is None or self.num_generations < 2:
            raise ConfigError(
                "num_generations",
                expected="at least 2 rollouts per question, since an advantage compares them",
                found=self.num_generations,
                hint="the paper uses 8",
            )
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        processes = int(os.environ.get("WORLD_SIZE", "1"))
        rows = self.generation_batch_size or self.per_device_train_batch_size * steps * processes
        if rows % (self.num_generations * processes) != 0:
            raise ConfigError(
                "per_device_train_batch_size x steps_per_generation",
                expected=f"whole groups of num_generations={self.num_generations} rows on each process",
                found=f"{rows} rows in a generation batch",
                hint=f"make it a multiple of {self.num_generations * processes}; steps_per_generation defaults to "
                "gradient_accumulation_steps",
            )

    def _refuse_biased_sampling(self) -> None:
        extra = self.generation_kwargs if isinstance(self.generation_kwargs, dict) else {}
        neutral: dict[str, tuple[Any, ...]] = {
            "top_p": (1.0,),
            "top_k": (0, None),
            "min_p": (0.0, None),
            "repetition_penalty": (1.0,),
        }
        for name, allowed in neutral.items():
            value = extra.get(name, getattr(self, name))
            if value not in allowed:
                raise ConfigError(
                    name,
                    expected=f"{allowed[0]} in training: truncated sampling makes importance ratios wrong, because the "
                    "recorded log-probs are those of the whole distribution",
                    found=value,
                    hint="use temperature to sharpen rollouts, and set top-p only for evaluation",
                )

    def _refuse_unsupported(self) -> None:
        # Each of these changes a part of TRL's loss or rollout that the mixed objective replaces. Refused rather than
        # ignored: a setting without effect is worse than none.
        wanted: dict[str, Any] = {
            "beta": 0.0,
            "delta": None,
            "importance_sampling_level": "token",
            "multi_objective_aggregation": "sum_then_normalize",
            "off_policy_mask_threshold": None,
            "top_entropy_quantile": 1.0,
            "use_adaptive_entropy": False,
            "mask_truncated_completions": False,
            "use_vllm": False,
            "use_transformers_continuous_batching": False,
        }
        for name, value in wanted.items():
            if getattr(self, name) != value:
                raise ConfigError(
                    name,
                    expected=f"{value!r}: the mixed objective has no other form of it",
                    found=getattr(self, name),
                    hint="leave it out, or train with trl.GRPOTrainer",
                )
        if self.entropy_scoring == "cached" and self.uncertainty != "entropy":
            raise ConfigError(
                "entropy_scoring",
                expected="exact with uncertainty=negative_log_prob: what is cached are entropies",
                found=self.entropy_scoring,
                hint="set entropy_scoring=exact, or uncertainty=entropy",
            )
        self.alarms = parse_alarms(self.alarms)
        for alarm in read_alarms(self.alarms):
            if find_metric(alarm.metric) is None:
                raise ConfigError(
                    f"alarm {alarm.name}", expected="a metric of docs/metrics.md", found=alarm.metric, hint="spell it"
                )
        if self.max_skipped_updates < 0:
            raise ConfigError(
                "max_skipped_updates", expected="0 or more", found=self.max_skipped_updates, hint="0 stops at the first"
            )
        if self.save_total_limit is not None and self.save_total_limit < 2:
            raise ConfigError(
                "save_total_limit",
                expected="at least 2: the older checkpoint is deleted before the new one is known to be whole",
                found=self.save_total_limit,
                hint="set it to 2",
            )
        if self.world_size > 1:
            raise ConfigError(
                "number of processes",
                expected="1: the experience has one owner, and sharing its plan between processes is not built yet",
                found=self.world_size,
                hint="start one process without accelerate launch",
            )
