"""Each feature map of the paper, number by number."""

from math import exp

import pytest
import torch

from inline_attention import KERNELS
from inline_attention.ops.kernels import relu_affine

X = [-2.0, -0.5, 0.0, 3.0]
EXPECTED = {
    "identity": [-2.0, -0.5, 0.0, 3.0],
    "relu": [0.0, 0.0, 0.0, 3.0],
    "leaky_relu": [-0.02, -0.005, 0.0, 3.0],
    "exp": [exp(-0.4), exp(-0.1), 1.0, exp(0.6)],
}


def test_none_is_forgotten():
    assert {*EXPECTED, "relu_affine"} == set(KERNELS)


@pytest.mark.parametrize("name", EXPECTED)
def test_values(name):
    torch.testing.assert_close(KERNELS[name](torch.tensor(X)), torch.tensor(EXPECTED[name]))


def test_relu_affine_is_one_map_for_each_head():
    x = torch.tensor([[[[1.0, 2.0]], [[1.0, 2.0]]]])  # (1, 2 heads, 1 token, 2)
    weight = torch.tensor([[[1.0, 10.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    bias = torch.tensor([[0.5, 5.0], [0.0, -3.0]])
    assert relu_affine(x, weight, bias).tolist() == [[[[21.5, 3.0]], [[2.0, 0.0]]]]
