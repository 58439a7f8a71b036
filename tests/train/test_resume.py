"""A run that stopped and was resumed is the run that never stopped."""

from __future__ import annotations

import shutil

import pytest
import torch

from exgrpo.errors import ConfigError, StoreError
from exgrpo.train.checkpoint import FILE

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
