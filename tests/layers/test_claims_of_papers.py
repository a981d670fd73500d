"""Statements that do not hold of published code, each with the number that shows it; docs/mixers.md names them."""

import pytest
import torch

from inline_attention import MIXERS
from inline_attention.layers.mala import elu_plus_one
from inline_attention.layers.mhla import starting_mixing

from .variants import build


def rows_of(name, grid=(8, 8), **options):
    torch.manual_seed(0)
    mixer = build(name, **options)
    for part in (mixer.q, mixer.k if name == "mila" else mixer.kv):
        torch.nn.init.normal_(part.weight, std=0.5)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    return mixer.attention_rows(x, grid, range(x.shape[1])).mixed.detach()


def off(rows):
    """How far the sum of a row is from 1, in the median: a query that a ReLU makes zero has no weights at all."""
    return float((rows.sum(-1) - 1).abs().median())


def test_the_published_divisor_of_mhla_is_not_that_of_its_equation():
    """By equation 4 rows sum to 1. The published divisor has other tokens' queries in it, and rows do not."""
    assert off(rows_of("mhla", divisor="paper")) < 1e-5
    assert off(rows_of("mhla", divisor="published")) > 0.1


def test_the_published_start_of_mhla_normalises_over_the_blocks_that_read():
    """The paper divides the rows of P by their sums, the code its columns."""
    mixing = starting_mixing((4, 4), "linear")
    torch.testing.assert_close(mixing.sum(0), torch.ones(16))
    assert float((mixing.sum(1) - 1).abs().max()) > 0.1


ROTARY = ("mala", "rala", "mila", "nala", "linear")


@pytest.mark.parametrize("name", ROTARY)
def test_with_rotary_positions_rows_do_not_sum_to_one(name):
    """They turn the numerator only, unless both are asked for."""
    assert off(rows_of(name)) < 1e-3
    assert off(rows_of(name, rope="heads")) > 0.01
    assert off(rows_of(name, rope="heads", rope_in_divisor=True)) < 1e-3


def test_mala_is_linear_attention_plus_the_covariance_term():
    """Without rotary positions: docs/math.md, section 7."""
    mala = build("mala")
    linear = build("linear", kernel=elu_plus_one)
    inline = build("inline", kernel=elu_plus_one, local=False)
    for other in (linear, inline):
        other.load_state_dict(mala.state_dict())
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    even = torch.full((2, 2, 30, 30), 1 / 30, dtype=torch.float64)
    queries = range(30)
    ours, divided, centred = (one.attention_rows(x, None, queries).mixed for one in (mala, linear, inline))
    torch.testing.assert_close(ours, divided + centred - even, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["mala", "inline"])
def test_negative_weights_are_there(name):
    """Of the covariance term, which both have: their rows sum to 1 nevertheless."""
    rows = rows_of(name)
    torch.testing.assert_close(rows.sum(-1), torch.ones_like(rows[..., 0]), rtol=0, atol=1e-5)
    assert float((rows < 0).double().mean()) > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_query_of_zeros_is_no_nan_in_nala(dtype):
    """The published code divides by the query's length; here it reads zero, and has a gradient."""
    mixer = MIXERS["nala"](8, 2, dtype=dtype)
    torch.nn.init.zeros_(mixer.q.weight)
    torch.nn.init.zeros_(mixer.q.bias)
    x = torch.randn(1, 9, 8, dtype=dtype, requires_grad=True)
    out = mixer(x)
    torch.testing.assert_close(out, mixer.proj.bias.expand_as(out))
    out.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in mixer.parameters())
    assert x.grad.isfinite().all()


def test_the_first_forward_of_vit3_is_like_the_second():
    """Copies of the published code change their scale during the first call."""
    mixer = build("vit3")
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    assert torch.equal(mixer(x, (3, 4)), mixer(x, (3, 4)))
