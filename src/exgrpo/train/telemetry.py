"""The table of all metrics, and how the ones of a step are computed. A metric exists only here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exgrpo.objective import RatioStatistics, ratio_statistics
from exgrpo.train.batch import StepBatch
from exgrpo.types import CommitReport, Group, ReplayStatus


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a run logs.

    Attributes:
        name: as in metrics.jsonl and in every tracker; a trailing `*` stands for a name or number.
        unit: what it counts, or its range.
        meaning: one sentence for a reader of a plot.
        timing: whether it depends on the clock; those go to timing.jsonl, so that two runs with one seed write the same
            metrics.jsonl.
    """

    name: str
    unit: str
    meaning: str
    timing: bool = False


METRICS: tuple[Metric, ...] = (
    Metric("step", "updates", "Optimiser updates made so far."),
    Metric("epoch", "epochs", "Trainer's own progress through the data set, counted in whole generation batches."),
    Metric("loss", "1", "The mixed objective, entropy bonus included."),
    Metric("grad_norm", "1", "Norm of the gradient before clipping."),
    Metric("learning_rate", "1", "Learning rate of this update."),
    Metric("entropy", "nats", "Mean token entropy of the policy over the response tokens of the update."),
    Metric("policy_loss", "1", "The mixed objective without the entropy bonus."),
    Metric("clip_fraction", "0..1", "Share of fresh response tokens whose importance ratio left the clip range."),
    Metric("fresh/pass@1", "0..1", "Share of right rollouts of fresh questions; what the delayed start looks at."),
    Metric("fresh/solved_all", "0..1", "Share of fresh questions that all K rollouts solved."),
    Metric("fresh/solved_none", "0..1", "Share of fresh questions that no rollout solved."),
    Metric("fresh/entropy", "nats", "Mean over measured rollouts of fresh questions of their mean token entropy."),
    Metric("fresh/length", "tokens", "Mean response length of fresh rollouts."),
    Metric("fresh/truncated", "0..1", "Share of fresh rollouts that stopped at the length limit."),
    Metric("fresh/unparsed", "0..1", "Share of fresh rollouts in which no answer was found."),
    Metric("fresh/timed_out", "0..1", "Share of fresh rollouts whose judging took too long."),
    Metric("fresh/crashed", "0..1", "Share of fresh rollouts whose judging failed."),
    Metric("guard/skipped_updates", "0..1", "Share of updates skipped because something was not finite."),
    Metric("guard/on_policy", "0 or 1", "Whether an alarm keeps replay off from the next step on."),
    Metric("alarm/*", "0 or 1", "Whether an alarm is on."),
    Metric("rollouts/generated", "rollouts", "Responses generated in this step; K - 1 for a replayed question."),
    Metric("tokens/generated", "tokens", "Response tokens generated in this step."),
    Metric("tokens/useful", "0..1", "Share of trained response tokens in groups whose rewards differ."),
    Metric("replay/questions", "questions", "Questions replayed in this step."),
    Metric("replay/shortfall", "questions", "Questions that the ratio asked for and the experience could not give."),
    Metric("replay/pass@1", "0..1", "Share of right ones among the new rollouts of replayed questions."),
    Metric("replay/age", "steps", "Mean age of the replayed trajectories."),
    Metric("replay/age_max", "steps", "Greatest age of a replayed trajectory."),
    Metric("replay/uses", "uses", "Mean number of earlier replays of the replayed trajectories."),
    Metric("replay/entropy", "nats", "Mean of the uncertainty by which trajectories were chosen."),
    Metric("replay/entropy_collected", "nats", "Mean entropy of the same trajectories when they were collected."),
    Metric("replay/candidates", "trajectories", "Stored trajectories of the replayed questions, chosen from."),
    Metric("replay/length", "tokens", "Mean response length of the replayed trajectories."),
    Metric("replay/ratio_mean", "1", "Mean importance ratio w* of replayed tokens, current against past policy."),
    Metric("replay/ratio_q05", "1", "5 % quantile of w*."),
    Metric("replay/ratio_q50", "1", "Median of w*."),
    Metric("replay/ratio_q95", "1", "95 % quantile of w*."),
    Metric("replay/ratio_max", "1", "Greatest w*."),
    Metric("replay/effective_sample_size", "0..1", "Effective sample size of w* per replayed token."),
    Metric("replay/ratio_outside", "0..1", "Share of replayed tokens with w* outside [1/2, 2]."),
    Metric("experience/step", "steps", "Generation batches committed; the step that the experience counts in."),
    Metric("experience/questions", "questions", "Questions that can be replayed."),
    Metric("experience/trajectories", "trajectories", "Trajectories that can be replayed."),
    Metric("experience/seen", "questions", "Questions visited so far."),
    Metric("experience/retired", "questions", "Questions retired so far."),
    Metric("experience/inserted", "trajectories", "Trajectories new in the experience."),
    Metric("experience/duplicates", "trajectories", "Successes that the experience held already, to the token."),
    Metric("experience/removed_*", "trajectories", "Trajectories that left replay, by reason."),
    Metric("experience/bucket_*", "questions", "Questions that can be replayed, by right answers in the latest group."),
    Metric("experience/started", "0 or 1", "Whether replay is on."),
    Metric("reward", "1", "Mean reward of all rows, replayed ones included (TRL)."),
    Metric("reward_std", "1", "Standard deviation of the reward of all rows (TRL)."),
    Metric(
        "rewards/*",
        "1",
        "Mean and standard deviation by reward function; with several, a replayed row counts in the first (TRL).",
    ),
    Metric("frac_reward_zero_std", "0..1", "Share of rows in groups with equal rewards (TRL)."),
    Metric("num_tokens", "tokens", "Prompt and response tokens generated so far (TRL)."),
    Metric("completions/*", "tokens or share", "Length and truncation of all generated responses (TRL)."),
    Metric("eval_*", "as its name", "The same metric on the evaluation data set (TRL)."),
    Metric("total_flos", "FLOP", "Floating point operations so far, as transformers estimates them."),
    Metric("train_loss", "1", "Mean loss of the run."),
    Metric("step_time", "s", "Seconds for one update (TRL).", timing=True),
    Metric("time/plan_s", "s", "Seconds to draw questions and choose trajectories.", timing=True),
    Metric("time/score_s", "s", "Seconds to score candidates under the current policy.", timing=True),
    Metric("time/generate_s", "s", "Seconds to generate and judge the new rollouts.", timing=True),
    Metric("time/learn_s", "s", "Seconds of forward and backward of the step.", timing=True),
    Metric("time/commit_s", "s", "Seconds to commit the step to the experience.", timing=True),
    Metric("time/step_s", "s", "Seconds of the whole step.", timing=True),
    Metric("train_runtime", "s", "Seconds of the whole run.", timing=True),
    Metric("train_samples_per_second", "1/s", "Rows trained on per second.", timing=True),
    Metric("train_steps_per_second", "1/s", "Updates per second.", timing=True),
    Metric("eval_runtime", "s", "Seconds of an evaluation.", timing=True),
    Metric("eval_samples_per_second", "1/s", "Rows evaluated per second.", timing=True),
    Metric("eval_steps_per_second", "1/s", "Batches evaluated per second.", timing=True),
)

_EXACT = {metric.name: metric for metric in METRICS if not metric.name.endswith("*")}
_PREFIXES = {metric.name[:-1]: metric for metric in METRICS if metric.name.endswith("*")}


# Verdicts that say nothing of right or wrong.
_NO_VERDICT = ("unparsed", "timed_out", "crashed")


def find_metric(name: str) -> Metric | None:
    """Return the row of the table that explains `name`, None where there is none."""
    if name in _EXACT:
        return _EXACT[name]
    return next((metric for prefix, metric in _PREFIXES.items() if name.startswith(prefix)), None)


def step_metrics(batch: StepBatch, groups: list[Group], report: CommitReport, status: ReplayStatus) -> dict[str, float]:
    """Return the metrics of a committed step by name; what is undefined (no replay, no fresh question) is left out."""
    values = {
        **_fresh_metrics([group for group in groups if group.replayed_id is None]),
        **_replay_metrics(batch, [group for group in groups if group.replayed_id is not None]),
        **_token_metrics(batch, groups),
        **_experience_metrics(report, status),
    }
    return {name: float(value) for name, value in values.items() if not math.isnan(value)}


def _fresh_metrics(groups: list[Group]) -> dict[str, Any]:
    if not groups:
        return {}
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return {
        "fresh/pass@1": np.mean([rollout.correct for rollout in rollouts]),
        "fresh/solved_all": np.mean([group.num_correct == group.size for group in groups]),
        "fresh/solved_none": np.mean([group.num_correct == 0 for group in groups]),
        "fresh/entropy": _mean(rollout.mean_entropy for rollout in rollouts),
        "fresh/length": np.mean([len(rollout.response_ids) for rollout in rollouts]),
        "fresh/truncated": np.mean([rollout.truncated for rollout in rollouts]),
        **{f"fresh/{name}": np.mean([rollout.verdict == name for rollout in rollouts]) for name in _NO_VERDICT},
    }


def _mean(values: Iterable[float | None]) -> float:
    measured = [value for value in values if value is not None]
    return float(np.mean(measured)) if measured else math.nan


def _replay_metrics(batch: StepBatch, groups: list[Group]) -> dict[str, Any]:
    plan = batch.plan
    counts = {"replay/questions": len(plan.replays), "replay/shortfall": plan.shortfall}
    if not plan.replays:
        return counts
    ages = [plan.step - replay.experience.policy_step for replay in plan.replays]
    return {
        **counts,
        "replay/pass@1": np.mean([rollout.correct for group in groups for rollout in group.rollouts]),
        "replay/age": np.mean(ages),
        "replay/age_max": max(ages),
        "replay/uses": np.mean([replay.uses for replay in plan.replays]),
        "replay/entropy": np.mean([replay.entropy for replay in plan.replays]),
        "replay/entropy_collected": np.mean([replay.experience.mean_entropy for replay in plan.replays]),
        "replay/candidates": batch.num_candidates,
        "replay/length": np.mean([len(replay.experience.response_ids) for replay in plan.replays]),
        **_ratio_metrics(ratio_statistics(torch.cat(batch.replayed_log_ratios))),
    }


def _ratio_metrics(ratios: RatioStatistics) -> dict[str, float]:
    return {
        "replay/ratio_mean": ratios.mean,
        "replay/ratio_q05": ratios.q05,
        "replay/ratio_q50": ratios.q50,
        "replay/ratio_q95": ratios.q95,
        "replay/ratio_max": ratios.max,
        "replay/effective_sample_size": ratios.effective_sample_size,
        "replay/ratio_outside": ratios.outside,
    }


def _token_metrics(batch: StepBatch, groups: list[Group]) -> dict[str, float]:
    lengths = [[len(rollout.response_ids) for rollout in group.rollouts] for group in groups]
    replayed = {replay.experience.id: len(replay.experience.response_ids) for replay in batch.plan.replays}
    trained = [sum(row) + replayed.get(group.replayed_id or "", 0) for row, group in zip(lengths, groups, strict=True)]
    useful = [tokens for tokens, is_useful in zip(trained, batch.useful_groups(), strict=True) if is_useful]
    return {
        "rollouts/generated": sum(map(len, lengths)),
        "tokens/generated": sum(map(sum, lengths)),
        "tokens/useful": sum(useful) / sum(trained),
        "clip_fraction": batch.clipped / batch.clippable if batch.clippable else math.nan,
    }


def _experience_metrics(report: CommitReport, status: ReplayStatus) -> dict[str, float]:
    return {
        "experience/step": status.step,
        "experience/questions": status.questions,
        "experience/trajectories": status.trajectories,
        "experience/seen": status.seen,
        "experience/retired": status.retired,
        "experience/inserted": report.inserted,
        "experience/duplicates": report.duplicates,
        **{f"experience/removed_{reason}": count for reason, count in report.removed.items()},
        **{f"experience/bucket_{bucket}": count for bucket, count in enumerate(status.buckets)},
        "experience/started": status.started,
    }
