"""The example that explains the method computes what the trainer computes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from exgrpo.assets import chain_base_path
from exgrpo.objective import ObjectiveSettings
from exgrpo.tasks.chain import ChainQuestion
from tests.train.conftest import make_trainer

EXAMPLE = Path(__file__).parent.parent / "examples" / "minimal_loop.py"


@pytest.fixture(scope="module")
def minimal_loop():
    spec = importlib.util.spec_from_file_location("minimal_loop", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_it_is_short_enough_for_one_sitting():
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 300


def rows_of(minimal_loop, batch):
    """The trainer's generation batch as rows of the example."""
    rows = []
    for number, question_id in enumerate(batch.question_ids):
        for row in range(number * batch.group_size, (number + 1) * batch.group_size):
            generated = batch.generated
            question = ChainQuestion(question_id, "", "", 0)
            reward = float(generated.rewards[row])
            rows.append(
                minimal_loop.Row(
                    question,
                    generated.prompt_ids[row],
                    generated.response_ids[row],
                    reward,
                    batch.recorded_rows.get(row),
                )
            )
    return rows


def test_it_and_the_trainer_compute_the_same_loss_on_the_same_plan(tmp_path, minimal_loop):
    # One micro-batch a step, so that the trainer's bonus is the mean over the same tokens.
    one = {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1, "entropy_coef": 0.01}
    trainer = make_trainer(tmp_path, max_steps=2, **one)
    trainer.train()
    weights_after_one = make_trainer(tmp_path / "again", max_steps=1, **one)
    weights_after_one.train()
    assert len(trainer.batches[1].plan.replays) > 0
    settings = ObjectiveSettings(max_response_length=trainer.max_completion_length, entropy_coef=0.01)
    untrained = AutoModelForCausalLM.from_pretrained(chain_base_path())
    for model, batch, loss in zip((untrained, weights_after_one.model), trainer.batches, trainer.losses, strict=True):
        rows = rows_of(minimal_loop, batch)
        with torch.no_grad():
            now = minimal_loop.forward(model, [row.prompt_ids for row in rows], [row.response_ids for row in rows])
        assert minimal_loop.batch_loss(rows, now, batch.group_size, settings).item() == pytest.approx(loss, abs=2e-6)
    trainer.experience.close()
    weights_after_one.experience.close()


def test_it_runs_replays_and_prints_a_line_per_step(minimal_loop, capsys):
    minimal_loop.main(["--steps", "3", "--questions", "6", "--rollouts", "4", "--start_threshold", "0"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["step", "1"], ["step", "2"], ["step", "3"]]
    assert "replayed 0.000" in lines[0]
    assert any("replayed 0.000" not in line for line in lines[1:])


def test_its_generation_keeps_the_end_token_and_nothing_after_it(minimal_loop):
    tokenizer = AutoTokenizer.from_pretrained(chain_base_path())
    model = AutoModelForCausalLM.from_pretrained(chain_base_path())
    question = ChainQuestion("3+7-5=", "3+7-5=", "5", 3)
    torch.manual_seed(0)
    for row in minimal_loop.generate(model, tokenizer, [question], [8]):
        assert row.response_ids.count(tokenizer.eos_token_id) == 1
        assert row.response_ids[-1] == tokenizer.eos_token_id
