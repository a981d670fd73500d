"""The dense weights are the printed formulas, evaluated literally with loops."""

from math import exp, pi, sqrt

import pytest
import torch

from inline_attention.ops.reference import (
    angular_weights,
    efficient_weights,
    hydra_weights,
    injective_weights,
    linear_weights,
    local_weights,
    softmax_weights,
)


@pytest.fixture
def qk():
    return torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 6, 5, dtype=torch.float64)


def literally(q, k, row):
    """weights[b, h, i, j] from a function of one query and all keys, given as lists of numbers."""
    return torch.tensor(
        [
            [[row(i.tolist(), keys.tolist()) for i in queries] for queries, keys in zip(qb, kb, strict=True)]
            for qb, kb in zip(q, k, strict=True)
        ],
        dtype=torch.float64,
    )


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_injective_weights_are_the_printed_equation(qk):
    def row(q_i, keys):
        n, s = len(keys), len(q_i) ** -0.5
        return [s / n * dot(q_i, k_j) - 1 / n * sum(s / n * dot(q_i, k_t) for k_t in keys) + 1 / n for k_j in keys]

    torch.testing.assert_close(injective_weights(*qk), literally(*qk, row), rtol=1e-12, atol=1e-12)


def test_injective_weights_without_the_factor_are_equation_5_of_the_paper(qk):
    """The paper prints phi(q).phi(k_j) - mean_t phi(q).phi(k_t) + 1/N: scale = N turns s/N into 1."""

    def row(q_i, keys):
        n = len(keys)
        return [dot(q_i, k_j) - sum(dot(q_i, k_t) for k_t in keys) / n + 1 / n for k_j in keys]

    torch.testing.assert_close(injective_weights(*qk, scale=6.0), literally(*qk, row), rtol=1e-12, atol=1e-12)


def test_softmax_weights(qk):
    def row(q_i, keys):
        powers = [exp(dot(q_i, k_j) / sqrt(len(q_i))) for k_j in keys]
        return [p / sum(powers) for p in powers]

    torch.testing.assert_close(softmax_weights(*qk), literally(*qk, row))


def test_linear_weights(qk):
    q, k = (t.abs() for t in qk)

    def row(q_i, keys):
        total = sum(dot(q_i, k_t) for k_t in keys) + len(keys) * 1e-6
        return [dot(q_i, k_j) / total for k_j in keys]

    torch.testing.assert_close(linear_weights(q, k), literally(q, k, row))


def test_efficient_weights(qk):
    def row(q_i, keys):
        channel = [exp(c) / sum(map(exp, q_i)) for c in q_i]
        token = [[exp(k_j[c]) / sum(exp(k_t[c]) for k_t in keys) for c in range(len(q_i))] for k_j in keys]
        return [dot(channel, t) for t in token]

    torch.testing.assert_close(efficient_weights(*qk), literally(*qk, row))


def test_angular_weights(qk):
    def row(q_i, keys):
        return [(0.5 + dot(q_i, k_j) / pi) / len(keys) for k_j in keys]

    torch.testing.assert_close(angular_weights(*qk), literally(*qk, row))


def test_hydra_weights(qk):
    q, k = qk
    weights = hydra_weights(q, k)
    assert weights.shape == (2, 15, 4, 6)
    for head in range(3):
        for channel in range(5):
            expected = q[:, head, :, None, channel] * k[:, head, None, :, channel]
            torch.testing.assert_close(weights[:, head * 5 + channel], expected)


@pytest.mark.parametrize("weights", [softmax_weights, injective_weights, efficient_weights])
def test_rows_sum_to_one(qk, weights):
    mask = torch.tensor([[True] * 6, [True, False, True, True, False, False]])
    for given in (None, mask):
        torch.testing.assert_close(weights(*qk, mask=given).sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))


def test_only_injective_weights_can_be_negative(qk):
    assert injective_weights(*qk, scale=20.0).min() < 0
    assert (
        min(
            softmax_weights(*qk).min(),
            efficient_weights(*qk).min(),
            angular_weights(*[t / t.norm(dim=-1, keepdim=True) for t in qk]).min(),
        )
        >= 0
    )


@pytest.mark.parametrize(
    "weights", [softmax_weights, injective_weights, linear_weights, efficient_weights, angular_weights, hydra_weights]
)
def test_a_mask_is_the_same_as_leaving_the_tokens_out(qk, weights):
    q, k = (t.abs() for t in qk)
    mask = torch.tensor([[True, True, False, True, False, True]]).expand(2, -1)
    masked = weights(q, k, mask=mask)
    torch.testing.assert_close(masked[..., mask[0]], weights(q, k[:, :, mask[0]]))
    assert masked[..., ~mask[0]].abs().max() == 0


def test_local_weights_lay_the_kernel_around_the_query():
    kernels = torch.arange(1.0, 10).view(1, 1, 3, 3)
    rows = local_weights(kernels, (3, 4), torch.tensor([0, 5, 11])).view(3, 3, 4)
    assert rows[0].tolist() == [[5, 6, 0, 0], [8, 9, 0, 0], [0, 0, 0, 0]]
    assert rows[1].tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 0]]
    assert rows[2].tolist() == [[0, 0, 0, 0], [0, 0, 1, 2], [0, 0, 4, 5]]
