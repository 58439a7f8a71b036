"""Dealing rows anew for speed changes the work, not the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.train.batching import _boundaries, deal

from .conftest import WatchedTrainer, make_trainer


def chunks_of(lengths, useful, num_chunks, prompt=3, width=9):
    """Rows with the given response lengths, numbered in `row`, in equal chunks."""
    num = len(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    prompt_mask = torch.ones(num, prompt + 2, dtype=torch.long)
    prompt_mask[:, :2] = 0
    rows = {
        "row": torch.arange(num),
        "prompt_ids": torch.arange(num).unsqueeze(1) * prompt_mask,
        "prompt_mask": prompt_mask,
        "completion_ids": torch.arange(num).unsqueeze(1) * mask,
        "completion_mask": mask,
        "behaviour_log_probs": -mask.float(),
        "needed": torch.tensor(useful),
        "num_items_in_batch": mask.sum(),
    }
    parts = torch.arange(num).chunk(num_chunks)
    return [{k: v if v.ndim == 0 else v[part] for k, v in rows.items()} for part in parts]


def test_rows_of_like_length_share_a_micro_batch_and_padding_goes():
    dealt = deal(chunks_of([1, 9, 1, 9, 1, 9, 1, 9], [True] * 8, 2), keep_useless=True)
    # 4 rows of 3 + 1 and 4 of 3 + 9 tokens: half of the 64 tokens is passed with the first long row.
    assert [part["row"].tolist() for part in dealt] == [[0, 2, 4, 6, 1, 3], [5, 7]]
    assert [part["completion_ids"].shape[1] for part in dealt] == [9, 9]
    even = deal(chunks_of([2, 2, 2, 2, 9], [True] * 5, 2), keep_useless=True)
    assert [tuple(part["completion_ids"].shape) for part in even] == [(4, 2), (1, 9)]
    assert all(part["prompt_ids"].shape[1] == 3 for part in dealt + even)
    assert all(part["num_items_in_batch"] == 17 for part in even)


def test_useless_rows_are_left_out_unless_a_bonus_wants_them():
    chunks = chunks_of([5, 4, 3, 2], [False, True, False, True], 2)
    assert sorted(torch.cat([part["row"] for part in deal(chunks, keep_useless=False)]).tolist()) == [1, 3]
    assert sorted(torch.cat([part["row"] for part in deal(chunks, keep_useless=True)]).tolist()) == [0, 1, 2, 3]


def test_where_nothing_teaches_the_shortest_rows_keep_every_micro_batch_alive():
    dealt = deal(chunks_of([5, 4, 3, 2], [False] * 4, 2), keep_useless=False)
    assert [part["row"].tolist() for part in dealt] == [[3], [2]]


@given(st.data())
def test_every_useful_row_is_dealt_once_and_no_micro_batch_is_empty(data):
    num_chunks = data.draw(st.integers(1, 4))
    num = num_chunks * data.draw(st.integers(1, 4))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=num, max_size=num))
    useful = data.draw(st.lists(st.booleans(), min_size=num, max_size=num))
    keep = data.draw(st.booleans())
    dealt = deal(chunks_of(lengths, useful, num_chunks), keep_useless=keep)
    assert len(dealt) == num_chunks
    rows = [row for part in dealt for row in part["row"].tolist()]
    assert len(rows) == len(set(rows)) == (num if keep else max(sum(useful), num_chunks))
    assert {row for row, teaches in enumerate(useful) if teaches} <= set(rows)
    for part in dealt:
        assert len(part["row"]) > 0
        assert part["completion_mask"].sum(dim=1).tolist() == [lengths[row] for row in part["row"].tolist()]
        assert part["completion_mask"].sum(dim=1).max() == part["completion_ids"].shape[1]
        assert torch.equal(part["completion_ids"], part["row"].unsqueeze(1) * part["completion_mask"])
        assert torch.equal(part["behaviour_log_probs"], -part["completion_mask"].float())


@given(st.lists(st.integers(1, 50), min_size=4, max_size=40).map(sorted), st.integers(1, 4))
def test_parts_differ_in_tokens_by_at_most_two_rows(lengths, num_parts):
    parts = np.split(np.array(lengths), _boundaries(np.array(lengths), num_parts))
    sums = [part.sum() for part in parts]
    assert all(len(part) for part in parts)
    assert max(sums) - min(sums) <= 2 * max(lengths)


class UndealtTrainer(WatchedTrainer):
    """The same trainer with TRL's own micro-batches, padding and useless rows included."""

    def micro_batches(self, chunks):
        super().micro_batches(chunks)
        return chunks


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "bnpo", "dapo"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.01])
def test_the_weights_after_training_are_those_of_the_undealt_rows(tmp_path, loss_type, entropy_coef):
    # 4 micro-batches of 8 rows, two updates a batch.
    settings = {
        "loss_type": loss_type,
        "entropy_coef": entropy_coef,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 4,
        "max_steps": 4,
        "optim": "sgd",
        "learning_rate": 0.1,
    }
    weights, tokens = [], []
    for name, kind in (("dealt", WatchedTrainer), ("undealt", UndealtTrainer)):
        trainer = make_trainer(tmp_path / name, trainer_class=kind, **settings)
        trainer.train()
        assert any(batch.plan.replays for batch in trainer.batches)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
        tokens.append(sum(inputs["completion_ids"].numel() for inputs in trainer.loss_inputs))
        trainer.experience.close()
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=0)
    assert tokens[0] < tokens[1]
