"""Verdicts on their way from the verifier into the experience, and a store that is judged again."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from exgrpo.assets import chain_base_path
from exgrpo.cli.main import main
from exgrpo.errors import ConfigError
from exgrpo.experience import SQLiteStore
from exgrpo.verify import AnswerReward, VerifySettings, open_judge, reward_functions

from .conftest import SMALL, make_trainer, read_metrics

CUSTOM = "tests.train.test_verification"


def odd_steps(response, answer, **columns):
    """Right where the digit is; a response with an odd number of steps cannot be judged."""
    if response.count(";") % 2:
        raise ValueError("odd")
    if "#" not in response:
        return None
    return response.endswith(f"#{answer}")


odd_steps.version = "4"


@pytest.fixture(scope="module")
def judged_run(tmp_path_factory):
    judge = open_judge(VerifySettings(verify_with=f"{CUSTOM}:odd_steps", verify_workers=1))
    settings = VerifySettings(reward_format_weight=0.5)
    functions, weights = reward_functions(judge, settings, max_tokens=40)
    trainer = make_trainer(
        tmp_path_factory.mktemp("judged"), reward_funcs=functions, reward_weights=weights, max_steps=4
    )
    trainer.train()
    judge.close()
    yield trainer
    trainer.experience.close()


def test_a_rollout_is_a_success_by_its_verdict_and_not_by_what_other_rewards_add(judged_run):
    rollouts = [rollout for groups in judged_run.committed for group in groups for rollout in group.rollouts]
    assert {rollout.verdict for rollout in rollouts} >= {"correct", "wrong", "crashed"}
    for rollout in rollouts:
        text = judged_run.tokenizer.decode(rollout.response_ids, skip_special_tokens=True)
        assert (rollout.verdict == "crashed") == (text.count(";") % 2 == 1)
        assert rollout.correct == (rollout.verdict == "correct")
        # The form (anything at all) is worth 0.5 besides.
        assert rollout.reward == pytest.approx(float(rollout.correct) + 0.5 * bool(text.strip()))


def test_replayed_rows_keep_their_recorded_reward_beside_several_functions(judged_run):
    replays = [replay for batch in judged_run.batches for replay in batch.plan.replays]
    assert replays
    assert {replay.experience.reward for replay in replays} == {1.5}
    assert {replay.experience.verifier for replay in replays} == {f"{CUSTOM}:odd_steps@4"}


def test_shares_of_verdicts_are_metrics(judged_run):
    for values, groups in zip(read_metrics(judged_run.args.output_dir)[:4], judged_run.committed, strict=True):
        fresh = [rollout for group in groups if group.replayed_id is None for rollout in group.rollouts]
        for name in ("unparsed", "timed_out", "crashed"):
            share = sum(rollout.verdict == name for rollout in fresh) / len(fresh)
            assert values[f"fresh/{name}"] == pytest.approx(share)


def test_trls_own_trainer_takes_the_reward_as_it_is(tmp_path):
    judge = open_judge(VerifySettings(verify_with="numeric", verify_workers=1))
    data = Dataset.from_list([{"prompt": f"{n}+{n}=", "answer": str(2 * n % 10)} for n in range(8)])
    settings = {name: value for name, value in SMALL.items() if name not in ("start_rule", "max_steps")}
    trainer = GRPOTrainer(
        str(chain_base_path()),
        AnswerReward(judge, VerifySettings(reward_unparsed=-1.0)),
        args=GRPOConfig(output_dir=str(tmp_path), max_steps=1, **settings),
        train_dataset=data,
    )
    trainer.train()
    judge.close()
    assert "rewards/answer_reward/mean" in trainer.state.log_history[0]


# ---- a store that is judged again ------------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A small run from the command line, with its configuration beside the store."""
    config = tmp_path / "config.yaml"
    values = {**SMALL, "output_dir": str(tmp_path / "run"), "model_name_or_path": "chain-base", "logging_steps": 1}
    values |= {"chain_min_terms": 2, "chain_max_terms": 4, "chain_num_questions": 24, "chain_num_held_out": 8}
    config.write_text(json.dumps(values))
    assert main(["train", str(config), "--verify_with", f"{CUSTOM}:odd_steps"]) == 0
    return tmp_path / "run" / "experience.sqlite"


def test_a_store_is_verified_again_with_todays_verifier(finished, capsys):
    capsys.readouterr()
    assert main(["experience", "verify", str(finished), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    number = sum(said["verdicts"].values())
    assert number > 0
    assert said["verdicts"] == {"correct": number}
    assert said["verifier_then"] == {f"{CUSTOM}:odd_steps@4": number}
    assert said["failures"] == []


def test_what_fails_today_is_reported_and_kept_from_replay_where_asked(finished, capsys):
    # Another gold answer for every question: nothing that was right is right still.
    words = ["experience", "verify", str(finished), "--verify_with", "exact"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "odd_steps@4" in said
    assert "exact@1" in said
    assert "--quarantine keeps them from replay" in said
    with SQLiteStoreView(finished) as store:
        assert all(row.usage.quarantined is None for row in store.trajectories())
    assert main([*words, "--quarantine", "--json"]) == 0
    failures = json.loads(capsys.readouterr().out)["failures"]
    with SQLiteStoreView(finished) as store:
        quarantined = {row.id for row in store.trajectories() if row.usage.quarantined == "fails verification"}
    assert quarantined == {failure["id"] for failure in failures}
    assert main([*words, "--quarantine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quarantined"] == 0


def test_questions_that_the_data_no_longer_holds_are_counted_and_not_judged(finished, capsys):
    words = ["experience", "verify", str(finished), "--json", "--chain_num_questions", "3"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["unknown"] > 0


def test_a_store_without_its_configuration_is_refused(tmp_path, capsys):
    assert main(["experience", "verify", str(tmp_path / "experience.sqlite")]) == 1
    assert "--config" in capsys.readouterr().err


def test_options_that_a_verifier_does_not_have_are_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="require_box"):
        open_judge(VerifySettings(verify_with="math", verify_options={"require_boxes": True}))


class SQLiteStoreView:
    """A store to look at, closed afterwards."""

    def __init__(self, path):
        self._store = SQLiteStore(path, None, mode="ro")

    def __enter__(self):
        return self._store

    def __exit__(self, *_):
        self._store.close()
