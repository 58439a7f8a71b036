"""The mixed objective against values by hand, a slow oracle, numerical gradients, and what must not matter."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from exgrpo.errors import ConfigError, DataError
from exgrpo.objective import ObjectiveSettings, RowWeights, mixed_policy_loss, row_weights

from . import oracle

LOSS_TYPES = ["dr_grpo", "grpo", "bnpo", "dapo"]
SHAPINGS = ["ratio", "none", "clip", "sqrt"]


def loss_of(log_probs, past, mask, advantages, replayed, *, known=None, entropies=None, num_tokens=None, **settings):
    """The loss with everything known unless said otherwise."""
    chosen = ObjectiveSettings(**{"max_response_length": 4, **settings})
    return mixed_policy_loss(
        log_probs=log_probs,
        entropies=torch.zeros_like(log_probs) if entropies is None else entropies,
        response_mask=mask,
        advantages=advantages,
        replayed=replayed,
        behaviour_log_probs=past,
        behaviour_known=torch.ones_like(replayed) if known is None else known,
        settings=chosen,
        weights=row_weights(mask, chosen, num_tokens),
    )


def test_a_mixed_batch_worked_by_hand():
    # Row 0 is fresh, A = 1/2, two tokens with w = 1.5 (clipped to 1.2) and 1: surrogate 0.6 + 0.5 = 1.1.
    # Row 1 is replayed, A = -1/2, one token with w* = 0.4: f = 0.4 / 0.5 = 0.8, surrogate -0.4.
    # dr_grpo divides by 2 rows x 4 tokens: -(1.1 - 0.4) / 8 = -0.0875. A bonus of 0.1 x mean entropy 0.3 takes 0.03.
    log_w = torch.tensor([[math.log(1.5), 0.0], [math.log(0.4), 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True], [True, False]])
    said = loss_of(
        log_w,
        torch.zeros(2, 2),
        mask,
        torch.tensor([0.5, -0.5]),
        torch.tensor([False, True]),
        entropies=torch.tensor([[0.2, 0.3], [0.4, 99.0]], dtype=torch.float64),
        entropy_coef=0.1,
    )
    assert said.policy_loss.item() == pytest.approx(-0.0875)
    assert said.entropy.item() == pytest.approx(0.3)
    assert said.loss.item() == pytest.approx(-0.1175)
    assert said.clipped.tolist() == [[True, False], [False, False]]
    assert said.log_ratios[1].tolist() == pytest.approx([math.log(0.4), 0.0])


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("dr_grpo", -(3 * 1 + 1 * 2) / 8),  # 2 rows x 4 tokens
        ("grpo", -(1 + 2) / 2),  # row means 1 and 2
        ("bnpo", -(3 * 1 + 1 * 2) / 4),  # 4 tokens
        ("dapo", -(3 * 1 + 1 * 2) / 10),  # the caller's number
    ],
)
def test_normalisations_worked_by_hand(loss_type, expected):
    # Ratios 1; row 0 has three tokens and A = 1, row 1 one token and A = 2.
    mask = torch.tensor([[True, True, True], [True, False, False]])
    zeros = torch.zeros(2, 3)
    none = torch.tensor([False, False])
    said = loss_of(zeros, zeros, mask, torch.tensor([1.0, 2.0]), none, loss_type=loss_type, num_tokens=10)
    assert said.loss.item() == pytest.approx(expected)


def test_where_the_policy_has_not_moved_the_gradient_is_that_of_the_log_prob():
    log_probs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    unknown = torch.tensor([False])
    said = loss_of(log_probs, torch.full((1, 2), math.nan), mask, torch.tensor([3.0]), unknown, known=unknown)
    said.loss.backward()
    assert said.loss.item() == pytest.approx(-3 * 2 / 4)
    assert log_probs.grad.tolist() == [[-0.75, -0.75]]


rows = st.lists(
    st.tuples(
        st.lists(st.tuples(st.floats(-6, -0.01), st.floats(-6, -0.01)), min_size=1, max_size=4),
        st.floats(-1, 1).filter(lambda a: a == 0 or abs(a) > 1e-3),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def to_tensors(rows, width=4):
    log_probs, past = torch.full((len(rows), width), 0.5), torch.full((len(rows), width), -0.5)
    log_probs, past = log_probs.double(), past.double()
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, (tokens, *_) in enumerate(rows):
        log_probs[number, : len(tokens)] = torch.tensor([p for p, _ in tokens], dtype=torch.float64)
        past[number, : len(tokens)] = torch.tensor([q for _, q in tokens], dtype=torch.float64)
        mask[number, : len(tokens)] = True
    advantages = torch.tensor([advantage for _, advantage, _ in rows], dtype=torch.float64)
    return log_probs, past, mask, advantages, torch.tensor([replayed for *_, replayed in rows])


ROWS_THAT_CANCEL = [
    ([(-1.0, -1.0), (-1.0, -3.5)], -0.0625, False),
    ([(-1.0, -1.0), (-3.0, -1.0)], 0.5, False),
    ([(-1.0, -1.0), (-3.0, -1.0)], 0.5, False),
    ([(-1.0, -1.0), (-1.0, -4.0), (-3.0, -6.0)], -0.0625, False),
    ([(-3.0, -1.0), (-6.0, -6.0), (-6.0, -6.0)], 1.0, False),
]


@example(ROWS_THAT_CANCEL, "grpo", "ratio", False)
@given(rows, st.sampled_from(LOSS_TYPES), st.sampled_from(SHAPINGS), st.booleans())
def test_equals_the_oracle(rows, loss_type, shaping, clip_fresh):
    said = loss_of(*to_tensors(rows), loss_type=loss_type, shaping=shaping, clip_fresh=clip_fresh, num_tokens=7.0)
    plain = [([p for p, _ in tokens], [q for _, q in tokens], a, r) for tokens, a, r in rows]
    settings = {
        "loss_type": loss_type,
        "max_response_length": 4,
        "num_tokens": 7.0,
        "shaping": shaping,
        "clip_fresh": clip_fresh,
    }
    # Row weights are float32, and what they round by is large beside a sum whose terms cancel.
    size = oracle.mixed_loss(plain, of=abs, **settings)
    assert said.loss.item() == pytest.approx(oracle.mixed_loss(plain, **settings), rel=0, abs=3e-7 * size + 1e-12)


# Twenty terms as large as e^6 may cancel; in float64 the order of the sum then shows at some 1e-11.
SUM_OF_RATIOS = 1e-10


def loss_and_gradient(log_probs, entropies, *rest, **settings):
    log_probs = log_probs.clone().requires_grad_()
    entropies = entropies.clone().requires_grad_()
    said = loss_of(log_probs, *rest, entropies=entropies, entropy_coef=0.05, num_tokens=7.0, **settings)
    said.loss.backward()
    return said.loss.item(), log_probs.grad, entropies.grad


@given(rows, st.sampled_from(LOSS_TYPES), st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(rows, loss_type, random):
    tensors = to_tensors(rows)
    entropies = tensors[0].abs()
    order = list(range(len(rows)))
    random.shuffle(order)
    loss, grad, _ = loss_and_gradient(tensors[0], entropies, *tensors[1:], loss_type=loss_type)
    shuffled = loss_and_gradient(
        tensors[0][order], entropies[order], *[tensor[order] for tensor in tensors[1:]], loss_type=loss_type
    )
    assert shuffled[0] == pytest.approx(loss, abs=SUM_OF_RATIOS)
    torch.testing.assert_close(shuffled[1], grad[order])


@given(rows, st.sampled_from(LOSS_TYPES), st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
def test_neither_more_padding_nor_what_stands_in_it_changes_anything(rows, loss_type, filler):
    narrow, wide = to_tensors(rows), to_tensors(rows, width=6)
    mask = wide[2]
    filled = [torch.where(mask, tensor, filler) for tensor in (wide[0], wide[1], wide[0].abs())]
    loss, grad, entropy_grad = loss_and_gradient(narrow[0], narrow[0].abs(), *narrow[1:], loss_type=loss_type)
    other = loss_and_gradient(filled[0], filled[2], filled[1], *wide[2:], loss_type=loss_type)
    assert other[0] == pytest.approx(loss, abs=SUM_OF_RATIOS)
    torch.testing.assert_close(other[1], torch.nn.functional.pad(grad, (0, 2)))
    torch.testing.assert_close(other[2], torch.nn.functional.pad(entropy_grad, (0, 2)))


@given(rows, rows, st.sampled_from(LOSS_TYPES), st.randoms(use_true_random=False))
def test_with_weights_fixed_beforehand_it_does_not_matter_how_rows_are_dealt(first, second, loss_type, random):
    chosen = ObjectiveSettings(max_response_length=4, loss_type=loss_type, entropy_coef=0.1)
    batches = [to_tensors(first), to_tensors(second)]
    weights = [row_weights(batch[2], chosen, 7.0) for batch in batches]
    joined = [torch.cat(both) for both in zip(*batches, strict=True)]
    fixed = RowWeights(*(torch.cat(both) for both in zip(*((w.policy, w.entropy) for w in weights), strict=True)))
    order = list(range(len(first) + len(second)))
    random.shuffle(order)
    middle = random.randint(0, len(order))

    def total(parts):
        return sum(
            mixed_policy_loss(
                log_probs=log_probs,
                entropies=log_probs.abs(),
                response_mask=mask,
                advantages=advantages,
                replayed=replayed,
                behaviour_log_probs=past,
                behaviour_known=torch.ones_like(replayed),
                settings=chosen,
                weights=part,
            ).loss
            for (log_probs, past, mask, advantages, replayed), part in parts
        )

    dealt = [
        ([tensor[part] for tensor in joined], RowWeights(fixed.policy[part], fixed.entropy[part]))
        for part in (order[:middle], order[middle:])
    ]
    assert float(total(dealt)) == pytest.approx(float(total(zip(batches, weights, strict=True))), abs=1e-6)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("shaping", SHAPINGS)
def test_gradients_equal_numerical_ones(loss_type, shaping):
    torch.manual_seed(1)
    log_probs = (-torch.rand(4, 3, dtype=torch.float64)).requires_grad_()
    entropies = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    past = -torch.rand(4, 3, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    advantages = torch.tensor([0.5, -0.5, 0.75, 1.0], dtype=torch.float64)
    replayed = torch.tensor([False, False, True, True])

    def loss(values, uncertain):
        return loss_of(
            values,
            past,
            mask,
            advantages,
            replayed,
            entropies=uncertain,
            entropy_coef=0.1,
            loss_type=loss_type,
            shaping=shaping,
            num_tokens=5.0,
        ).loss

    assert torch.autograd.gradcheck(loss, (log_probs, entropies))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("replayed", [False, True])
def test_with_nothing_to_learn_from_loss_and_gradient_are_zero(loss_type, replayed):
    nothing = torch.full((2, 3), math.nan)
    mask = torch.zeros(2, 3, dtype=torch.bool)
    flags = torch.tensor([replayed, replayed])
    loss, grad, entropy_grad = loss_and_gradient(
        nothing, nothing, nothing, mask, torch.tensor([1.0, -1.0]), flags, loss_type=loss_type
    )
    assert loss == 0
    assert not grad.any()
    assert not entropy_grad.any()


def test_equal_rewards_give_no_gradient():
    log_probs = torch.tensor([[-1.0, -0.5]], requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss_of(log_probs, torch.zeros(1, 2), mask, torch.zeros(1), torch.tensor([False])).loss.backward()
    assert not log_probs.grad.any()


@pytest.mark.parametrize("shaping", SHAPINGS)
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("difference", [1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_one_token_with_a_huge_or_tiny_ratio_is_finite(shaping, replayed, difference, advantage):
    loss, grad, _ = loss_and_gradient(
        torch.tensor([[difference]]),
        torch.zeros(1, 1),
        torch.zeros(1, 1),
        torch.ones(1, 1, dtype=torch.bool),
        torch.tensor([advantage]),
        torch.tensor([replayed]),
        shaping=shaping,
    )
    assert math.isfinite(loss)
    assert grad.isfinite().all()


def test_without_a_bonus_the_entropies_stay_out_of_the_graph():
    entropies = torch.ones(1, 1, requires_grad=True)
    log_probs = torch.zeros(1, 1, requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    said = loss_of(log_probs, torch.zeros(1, 1), mask, torch.ones(1), torch.tensor([True]), entropies=entropies)
    said.loss.backward()
    assert entropies.grad is None
    assert said.entropy.item() == 1


def test_clipped_fresh_tokens_are_counted_only_where_fresh_rows_are_clipped():
    log_probs, zeros = torch.tensor([[1.0]]), torch.zeros(1, 1)
    rest = (zeros, torch.ones(1, 1, dtype=torch.bool), torch.ones(1), torch.tensor([False]))
    assert loss_of(log_probs, *rest).clipped.any()
    assert not loss_of(log_probs, *rest, clip_fresh=False).clipped.any()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("loss_type", "ppo"),
        ("shaping", "cube"),
        ("max_response_length", 0),
        ("max_response_length", math.inf),
        ("clip_low", 1.5),
        ("clip_low", -0.1),
        ("clip_high", math.inf),
        ("shaping_beta", 0.0),
        ("shaping_beta", math.nan),
        ("entropy_coef", math.nan),
    ],
)
def test_settings_that_cannot_work_are_refused_with_a_hint(name, value):
    with pytest.raises(ConfigError, match="hint: ") as caught:
        ObjectiveSettings(**{"max_response_length": 4, name: value})
    assert caught.value.where == name


def test_dapo_without_a_number_of_tokens_is_refused():
    zeros = torch.zeros(1, 1)
    rest = (zeros, torch.ones(1, 1, dtype=torch.bool), torch.ones(1), torch.tensor([False]))
    with pytest.raises(ConfigError, match="num_tokens"):
        loss_of(zeros, *rest, loss_type="dapo")


def test_a_replayed_row_whose_writer_is_unknown_is_refused():
    # Its own log-probs cannot stand in: w would be 1 whatever the past policy said, and nobody would notice.
    zeros, mask = torch.zeros(2, 1), torch.ones(2, 1, dtype=torch.bool)
    replayed, known = torch.tensor([False, True]), torch.tensor([True, False])
    with pytest.raises(DataError, match=r"row 1(?s:.*)hint"):
        loss_of(zeros, zeros, mask, torch.ones(2), replayed, known=known)
