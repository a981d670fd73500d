"""Sums over bands of a map, against GroupNorm and pooling of the whole map."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inline_attention.large.map_sums import Moments, group_norm, pool_rows


def moments(whole, *splits):
    bands = torch.tensor_split(whole, splits, dim=2)
    total = Moments.of(bands[0])
    for band in bands[1:]:
        total = total + Moments.of(band)
    return total


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_in_bands(groups, affine):
    whole = torch.randn(1, 12, 11, 7, dtype=torch.float64) * 3 + torch.arange(12).view(12, 1, 1)
    norm = nn.GroupNorm(groups, 12, affine=affine, dtype=torch.float64)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    total = moments(whole, 1, 2, 7)
    assert total.count == 77
    bands = [group_norm(band, norm, total) for band in whole.split(4, 2)]
    torch.testing.assert_close(torch.cat(bands, 2), norm(whole), rtol=1e-12, atol=1e-12)


def test_a_mean_far_from_zero_costs_the_variance_no_digits():
    """In fp32 the mean of squares less the square of the mean would be off by a hundred times the variance."""
    whole = 0.1 * torch.randn(1, 4, 300, 50) + 3000.0
    exact = whole.double().var((0, 2, 3), unbiased=False)
    total = moments(whole, 3, 150)
    torch.testing.assert_close(total.squares / total.count, exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(total.mean, whole.double().mean((0, 2, 3)), rtol=1e-9, atol=0)


def test_gradients_flow_through_the_moments():
    whole = torch.randn(1, 8, 6, 5, dtype=torch.float64, requires_grad=True)
    norm, weights = nn.GroupNorm(2, 8, dtype=torch.float64), torch.randn(1, 8, 6, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad((norm(whole) * weights).sum(), whole)
    total = moments(whole, 2)
    (own,) = torch.autograd.grad((group_norm(whole, norm, total) * weights).sum(), whole)
    torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [(12, 18), (13, 7), (5, 4), (1, 2)])
@pytest.mark.parametrize("bins", [1, 2, 3, 6])
def test_pooling_in_bands(size, bins):
    whole = torch.randn(1, 3, *size, dtype=torch.float64)
    expected = F.adaptive_avg_pool2d(whole, bins)
    for rows in (1, 4, 100):
        starts = range(0, size[0], rows)
        own = sum(pool_rows(whole[:, :, start : start + rows], start, size[0], bins) for start in starts)
        torch.testing.assert_close(own, expected, rtol=1e-12, atol=1e-12)
