"""What a run leaves behind: the same for the same seed, and every number explained."""

from __future__ import annotations

import io

from exgrpo.train import ProgressLines
from exgrpo.train.telemetry import METRICS, find_metric

from .conftest import make_trainer, read_metrics


def run(directory, **settings):
    trainer = make_trainer(directory, **settings)
    trainer.train()
    trainer.experience.close()
    return (directory / "metrics.jsonl").read_bytes()


def test_two_runs_with_one_seed_write_the_same_metrics(tmp_path):
    first = run(tmp_path / "a", max_steps=4)
    assert first == run(tmp_path / "b", max_steps=4)
    assert first != run(tmp_path / "c", max_steps=4, seed=6)
    assert any(line["replay/questions"] > 0 for line in read_metrics(tmp_path / "a")[:4])


def test_every_logged_name_stands_in_the_table(mixed_run):
    for file, timing in (("metrics.jsonl", False), ("timing.jsonl", True)):
        for line in read_metrics(mixed_run.args.output_dir, file):
            for name in line:
                metric = find_metric(name)
                assert metric is not None, f"{name} is logged, but not in the table"
                assert metric.timing == timing or name == "step"


def test_the_table_names_each_metric_once_with_unit_and_meaning():
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert all(metric.unit and metric.meaning.endswith((".", ").")) for metric in METRICS)


def test_metrics_equal_what_the_trainer_saw(mixed_run):
    for line, groups, batch in zip(
        read_metrics(mixed_run.args.output_dir), mixed_run.committed, mixed_run.batches, strict=False
    ):
        fresh = [rollout for group in groups if group.replayed_id is None for rollout in group.rollouts]
        assert line["fresh/pass@1"] == sum(rollout.correct for rollout in fresh) / len(fresh)
        assert line["replay/questions"] == len(batch.plan.replays)
        assert line["replay/shortfall"] == batch.plan.requested - len(batch.plan.replays)
        if batch.plan.replays:
            ages = [batch.plan.step - replay.experience.policy_step for replay in batch.plan.replays]
            assert line["replay/age"] == sum(ages) / len(ages)
            assert line["replay/age_max"] == max(ages)
            # One update a batch and a policy that moves: the past policy is another one, but not far away.
            assert 0.2 < line["replay/ratio_q50"] < 5
            assert 0 < line["replay/effective_sample_size"] <= 1


def test_useful_tokens_are_those_of_groups_whose_rewards_differ(mixed_run):
    for line, groups, batch in zip(
        read_metrics(mixed_run.args.output_dir), mixed_run.committed, mixed_run.batches, strict=False
    ):
        stored = {replay.experience.id: len(replay.experience.response_ids) for replay in batch.plan.replays}
        useful = total = 0
        for group in groups:
            tokens = sum(len(rollout.response_ids) for rollout in group.rollouts) + stored.get(group.replayed_id, 0)
            total += tokens
            useful += tokens * (0 < group.num_correct < group.size)
        assert line["tokens/useful"] == useful / total


def test_progress_is_one_line_per_step_with_the_figures_of_the_metrics(tmp_path):
    stream = io.StringIO()
    trainer = make_trainer(tmp_path, max_steps=3)
    trainer.add_callback(ProgressLines(stream))
    trainer.train()
    trainer.experience.close()
    header, *lines = stream.getvalue().splitlines()
    names = "step pass@1 entropy questions trajectories retired replayed useful left"
    assert header.split() == names.split()
    assert len(lines) == 3
    for line, metrics in zip(lines, read_metrics(tmp_path), strict=False):
        step, pass_rate, entropy, questions, trajectories, retired, replayed, useful, left = line.split()
        assert step == f"{metrics['step']}/3"
        assert pass_rate == f"{metrics['fresh/pass@1']:.1%}"
        assert entropy == f"{metrics['entropy']:.3f}"
        assert int(questions) == metrics["experience/questions"]
        assert int(trajectories) == metrics["experience/trajectories"]
        assert int(retired) == metrics["experience/retired"]
        assert int(replayed) == metrics["replay/questions"]
        assert useful == f"{metrics['tokens/useful']:.0%}"
    assert left == "0:00"
