"""Importance ratios, their shapes and their statistics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.objective import ratio_statistics, shaped_weight
from exgrpo.objective.weights import MAX_LOG_RATIO, clipped_surrogate, is_clipped, log_ratio


def shaped(w, shaping="ratio", beta=0.1):
    return shaped_weight(torch.tensor([[w]], dtype=torch.float64).log(), shaping, beta).item()


def test_shapes_worked_by_hand():
    assert shaped(0.1) == pytest.approx(0.5)  # 0.1 / (0.1 + 0.1)
    assert shaped(1.0) == pytest.approx(1 / 1.1)
    assert shaped(0.9, beta=0.6) == pytest.approx(0.6)  # 0.9 / 1.5
    assert shaped(0.25, "sqrt") == pytest.approx(0.5)
    assert shaped(0.25, "none") == shaped(0.25, "clip") == pytest.approx(0.25)


@given(st.floats(1e-4, 1e4), st.floats(1e-3, 10))
def test_the_ratio_shape_is_w_over_w_plus_beta_and_grows(w, beta):
    assert shaped(w, beta=beta) == pytest.approx(w / (w + beta), rel=1e-9)
    assert shaped(w * 1.01, beta=beta) > shaped(w, beta=beta)


@pytest.mark.parametrize("beta", [0.05, 0.1, 1.0])
def test_the_gradient_factor_peaks_at_beta(beta):
    log_w = torch.linspace(-12, 6, 2001, dtype=torch.float64, requires_grad=True)
    (factor,) = torch.autograd.grad(
        shaped_weight(log_w.unsqueeze(0), "ratio", beta).sum(), log_w
    )  # d f / d log w = w f'(w)
    assert log_w[factor.argmax()].exp().item() == pytest.approx(beta, rel=0.01)
    assert factor.max().item() == pytest.approx(0.25, rel=1e-3)  # beta^2 / (2 beta)^2


@pytest.mark.parametrize("shaping", ["ratio", "none", "clip", "sqrt"])
def test_gradients_equal_numerical_ones(shaping):
    log_w = torch.linspace(-2, 2, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: shaped_weight(x.unsqueeze(0), shaping, 0.1), (log_w,))


@pytest.mark.parametrize("shaping", ["ratio", "none", "sqrt"])
@pytest.mark.parametrize("difference", [1e4, -1e4, math.inf, -math.inf])
def test_huge_and_tiny_ratios_have_finite_values_and_gradients(shaping, difference):
    log_probs = torch.tensor([[difference]], requires_grad=True)
    weight = shaped_weight(log_ratio(log_probs, torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool)), shaping, 0.1)
    weight.sum().backward()
    assert weight.isfinite().all()
    assert log_probs.grad.isfinite().all()


def test_log_ratios_are_zero_outside_the_response_whatever_stands_there():
    mask = torch.tensor([[True, False, False]])
    log_probs = torch.tensor([[-1.0, math.nan, -math.inf]], requires_grad=True)
    ratios = log_ratio(log_probs, torch.tensor([[-3.0, 1.0, -math.inf]]), mask)
    ratios.sum().backward()
    assert ratios.tolist() == [[2.0, 0.0, 0.0]]
    assert log_probs.grad.tolist() == [[1.0, 0.0, 0.0]]
    assert log_ratio(torch.tensor([[50.0]]), torch.zeros(1, 1), mask[:, :1]).item() == MAX_LOG_RATIO


@pytest.mark.parametrize(
    ("w", "advantage", "value", "binds"),
    [
        (1.5, 1.0, 1.2, True),  # min(1.5, 1.2)
        (1.5, -1.0, -1.5, False),  # min(-1.5, -1.2)
        (0.5, 1.0, 0.5, False),
        (0.5, -1.0, -0.8, True),  # min(-0.5, -0.8)
        (1.1, 2.0, 2.2, False),
        (1.5, 0.0, 0.0, False),
    ],
)
def test_the_clip_worked_by_hand(w, advantage, value, binds):
    log_w, a = torch.tensor([[math.log(w)]], dtype=torch.float64), torch.tensor([[advantage]], dtype=torch.float64)
    assert clipped_surrogate(log_w, a, 0.2, 0.2).item() == pytest.approx(value)
    assert is_clipped(log_w, a, 0.2, 0.2).item() is binds


def test_statistics_worked_by_hand():
    # w = 1, 1, 4: mean 2, median 1, effective size 6^2 / (3 x 18) = 2/3, one of three outside [1/2, 2].
    said = ratio_statistics(torch.tensor([1.0, 1.0, 4.0]).log())
    assert said.mean == pytest.approx(2)
    assert said.q50 == pytest.approx(1)
    assert said.max == pytest.approx(4)
    assert said.effective_sample_size == pytest.approx(2 / 3)
    assert said.outside == pytest.approx(1 / 3)
    assert said.q05 <= said.q50 <= said.q95 <= said.max + 1e-9


@given(st.floats(-20, 20), st.integers(1, 60))
def test_the_effective_sample_size_never_exceeds_one(log_w, num_tokens):
    size = ratio_statistics(torch.full((num_tokens,), log_w)).effective_sample_size
    assert 1 - 1e-9 < size <= 1


def test_equal_ratios_have_the_full_effective_sample_size_and_none_have_none():
    assert ratio_statistics(torch.full((5,), 0.3)).effective_sample_size == pytest.approx(1)
    said = ratio_statistics(torch.empty(0))
    assert all(math.isnan(value) for value in (said.mean, said.q50, said.effective_sample_size, said.outside))
