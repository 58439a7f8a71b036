"""Log-probs and entropies from logits: exact, stable, and never all at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from exgrpo.errors import ConfigError, DataError
from exgrpo.objective import mean_entropy, mean_negative_log_prob, token_log_probs_and_entropies

from . import oracle


def statistics(logits, ids, **settings):
    return token_log_probs_and_entropies(logits, ids, **settings)


def test_two_tokens_worked_by_hand():
    # Logits (0, 0): p = 1/2 each, entropy log 2. Logits (log 3, 0): p = 3/4 and 1/4,
    # entropy -(3/4 log 3/4 + 1/4 log 1/4) = log 4 - 3/4 log 3.
    logits = torch.tensor([[[0.0, 0.0], [math.log(3), 0.0]]])
    both = statistics(logits, torch.tensor([[0, 1]]))
    torch.testing.assert_close(both.log_probs, torch.tensor([[-math.log(2), -math.log(4)]]))
    torch.testing.assert_close(both.entropies, torch.tensor([[math.log(2), math.log(4) - 0.75 * math.log(3)]]))


@given(
    st.lists(st.lists(st.floats(-30, 30), min_size=4, max_size=4), min_size=1, max_size=6),
    st.integers(1, 7),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_equals_the_oracle_for_every_chunk_size_and_temperature(rows, chunk_size, temperature):
    logits = torch.tensor([rows], dtype=torch.float64)
    ids = torch.arange(len(rows)).remainder(4).unsqueeze(0)
    both = statistics(logits, ids, temperature=temperature, chunk_size=chunk_size)
    for position, row in enumerate(rows):
        expected = oracle.log_softmax(row, temperature)[position % 4]
        assert both.log_probs[0, position].item() == pytest.approx(expected, abs=1e-9)
        assert both.entropies[0, position].item() == pytest.approx(oracle.entropy(row, temperature), abs=1e-9)


@pytest.mark.parametrize("chunk_size", [1, 3, 100])
def test_gradients_equal_numerical_ones(chunk_size):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (2, 3))

    def both(values):
        said = statistics(values, ids, temperature=0.7, chunk_size=chunk_size)
        return said.log_probs, said.entropies

    assert torch.autograd.gradcheck(both, (logits,))


def test_a_token_that_cannot_come_gives_finite_entropies_and_gradients():
    logits = torch.tensor([[[0.0, 1.0, -math.inf]]], requires_grad=True)
    both = statistics(logits, torch.tensor([[1]]))
    (both.entropies.sum() + both.log_probs.sum()).backward()
    assert both.entropies.item() == pytest.approx(oracle.entropy([0.0, 1.0]))
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 0, 2] == 0


def test_half_precision_logits_are_worked_in_single_precision():
    torch.manual_seed(0)
    logits = torch.randn(2, 4, 50, dtype=torch.bfloat16)
    ids = torch.randint(50, (2, 4))
    both = statistics(logits, ids, chunk_size=3)
    exact = statistics(logits.double(), ids)
    assert both.log_probs.dtype == torch.float32
    torch.testing.assert_close(both.log_probs.double(), exact.log_probs, atol=1e-5, rtol=0)
    torch.testing.assert_close(both.entropies.double(), exact.entropies, atol=1e-5, rtol=0)


class LargestFloat32(TorchDispatchMode):
    """Notes the largest float32 tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                self.elements = max(self.elements, value.numel())
        return result


def test_no_float32_tensor_of_all_logits_is_made_forward_or_backward():
    logits = torch.randn(4, 32, 100).bfloat16().requires_grad_()
    ids = torch.randint(100, (4, 32))
    with LargestFloat32() as seen:
        both = statistics(logits, ids, chunk_size=16)
        (both.log_probs.sum() + both.entropies.sum()).backward()
    assert seen.elements == 16 * 100
    assert logits.grad.dtype == torch.bfloat16


def test_token_ids_that_do_not_match_the_logits_are_refused_for_every_chunk_size():
    # Without the check, chunks that end with the ids would pair each row's ids with another row's logits.
    logits, ids = torch.zeros(2, 6, 5), torch.zeros(2, 3, dtype=torch.long)
    for chunk_size in (3, 6, 1024):
        with pytest.raises(DataError, match=r"\[2, 6\](?s:.*)\[2, 3\](?s:.*)hint"):
            statistics(logits, ids, chunk_size=chunk_size)


@pytest.mark.parametrize(
    ("name", "value"),
    [("chunk_size", 0), ("chunk_size", -1), ("temperature", 0.0), ("temperature", -1.0), ("temperature", math.nan)],
)
def test_settings_that_cannot_work_are_refused_with_a_hint(name, value):
    with pytest.raises(ConfigError, match="hint: ") as caught:
        statistics(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), **{name: value})
    assert caught.value.where == name


def test_no_rows_or_no_tokens_give_nothing():
    for rows, tokens in ((0, 3), (2, 0)):
        logits = torch.zeros(rows, tokens, 5, requires_grad=True)
        both = statistics(logits, torch.zeros(rows, tokens, dtype=torch.long))
        (both.log_probs.sum() + both.entropies.sum()).backward()
        assert both.log_probs.shape == both.entropies.shape == (rows, tokens)
        assert logits.grad.shape == logits.shape


def test_the_two_uncertainties_are_means_over_response_tokens_alone():
    mask = torch.tensor([[True, True, False], [False, False, False]])
    values = torch.tensor([[0.2, 0.4, math.nan], [1.0, math.inf, 1.0]])
    torch.testing.assert_close(mean_entropy(values, mask), torch.tensor([0.3, 0.0]))
    torch.testing.assert_close(mean_negative_log_prob(-values, mask), torch.tensor([0.3, 0.0]))
