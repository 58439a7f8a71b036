"""A run that stopped and was resumed is the run that never stopped."""

from __future__ import annotations

import shutil

import pytest
import torch

from exgrpo.errors import ConfigError, StoreError
from exgrpo.train.checkpoint import FILE, checkpoints, is_whole, last_checkpoint

from ..experience.helpers import everything
from .conftest import make_trainer, read_metrics

SAVING = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}


def weights(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])


def finish(trainer, **how):
    trainer.train(**how)
    result = weights(trainer), everything(trainer.experience._store)
    trainer.experience.close()
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six steps with a checkpoint after the third."""
    directory = tmp_path_factory.mktemp("whole")
    trainer = make_trainer(directory, **SAVING)
    return directory, finish(trainer)


@pytest.mark.parametrize("resume", [True, "checkpoint-3"], ids=["the last checkpoint", "one by name"])
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path, whole, resume):
    directory, (expected_weights, expected_store) = whole
    shutil.copytree(directory, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint-6")
    # The experience is three steps ahead of the checkpoint, as after a crash: it is rolled back.
    trainer = make_trainer(tmp_path / "run", **SAVING)
    assert trainer.experience.status().step == 6
    how = True if resume is True else str(tmp_path / "run" / resume)
    found_weights, found_store = finish(trainer, resume_from_checkpoint=how)
    assert len(trainer.batches) == 3
    assert found_store == expected_store
    assert torch.equal(found_weights, expected_weights)
    both = [read_metrics(folder) for folder in (tmp_path / "run", directory)]
    assert both[0][:6] == both[1][:6]
    assert any(line["replay/questions"] for line in both[0][3:6])


def test_a_checkpoint_without_our_part_is_refused(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    for content in (None, "{", '{"schema_version": 99}'):
        path = tmp_path / "run" / "checkpoint-3" / FILE
        path.unlink() if content is None else path.write_text(content)
        trainer = make_trainer(tmp_path / "run", **SAVING)
        with pytest.raises(StoreError, match=r"(?s)exgrpo\.json.*hint"):
            trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
        trainer.experience.close()


def test_a_store_behind_its_checkpoint_is_refused(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path / "run")
    trainer = make_trainer(tmp_path / "run", **SAVING)
    trainer.experience.roll_back(2)
    with pytest.raises(StoreError, match=r"(?s)from 0 to 2.*hint"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    trainer.experience.close()


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path):
    trainer = make_trainer(tmp_path)
    with pytest.raises(ConfigError, match=r"(?s)a checkpoint in.*hint"):
        trainer.train(resume_from_checkpoint=True)
    trainer.experience.close()


def test_a_torn_checkpoint_is_never_chosen_and_goes_away(tmp_path, whole):
    directory, (expected_weights, expected_store) = whole
    for tear in ("seal", "file", "missing"):
        run = tmp_path / tear
        shutil.copytree(directory, run)
        if tear == "seal":
            (run / "checkpoint-6" / FILE).write_text('{"schema_version": 1, "step"')
        elif tear == "file":
            path = run / "checkpoint-6" / "model.safetensors"
            path.write_bytes(path.read_bytes()[:-1])
        else:
            (run / "checkpoint-6" / "optimizer.pt").unlink()
        assert last_checkpoint(run) == run / "checkpoint-3"
        trainer = make_trainer(run, **SAVING)
        found_weights, found_store = finish(trainer, resume_from_checkpoint=True)
        assert found_store == expected_store
        assert torch.equal(found_weights, expected_weights)
        assert is_whole(run / "checkpoint-6")  # written anew


def test_whole_checkpoints_after_the_chosen_one_are_set_aside(tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    trainer = make_trainer(run, **{**SAVING, "max_steps": 4})
    finish(trainer, resume_from_checkpoint=str(run / "checkpoint-3"))
    assert (run / "superseded-checkpoint-6").is_dir()
    assert last_checkpoint(run).name == "checkpoint-4"


def test_a_run_that_stopped_before_its_first_checkpoint_begins_again(tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    for name in ("checkpoint-3", "checkpoint-6"):
        shutil.rmtree(run / name)
    assert last_checkpoint(run) is None
    found_weights, found_store = finish(make_trainer(run, **SAVING), resume_from_checkpoint=True)
    assert found_store == whole[1][1]
    assert torch.equal(found_weights, whole[1][0])
    assert read_metrics(run)[:6] == read_metrics(whole[0])[:6]


def test_a_finished_run_takes_no_further_step(tmp_path, whole):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    trainer = make_trainer(run, **SAVING)
    found_weights, found_store = finish(trainer, resume_from_checkpoint=True)
    assert trainer.batches == []
    assert trainer.state.global_step == 6
    assert torch.equal(found_weights, whole[1][0])
    assert found_store == whole[1][1]


def test_a_checkpoint_waits_for_the_end_of_a_batch_that_serves_several_updates(tmp_path):
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=1, max_steps=4, steps_per_generation=4)
    trainer.train()
    trainer.experience.close()
    assert [folder.name for folder in checkpoints(tmp_path)] == ["checkpoint-4", "checkpoint-2"]
