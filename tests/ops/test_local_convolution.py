"""Both forms of the local convolution against dense rows, on grids of one, two and three sides."""

from math import prod

import pytest
import torch

from inline_attention.ops.local_convolution import grouped_convolution, local_convolution, shifted_convolution
from inline_attention.ops.reference import local_weights

from ..dense_form import gradients

FORMS = [grouped_convolution, shifted_convolution]
CASES = [
    ((7,), (3,)),
    ((5,), (9,)),
    ((1,), (3,)),
    ((14, 9), (3, 3)),
    ((4, 5), (5, 5)),
    ((1, 6), (3, 1)),
    ((6, 5), (2, 4)),
    ((2, 2), (7, 7)),
    ((3, 4, 5), (3, 3, 3)),
    ((2, 3, 4), (1, 3, 2)),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("grid", "size"), CASES)
@pytest.mark.parametrize(("batch", "kernels_batch"), [(1, 1), (5, 5), (5, 1)])
def test_equals_dense_rows(form, grid, size, batch, kernels_batch):
    v = torch.randn(batch, prod(grid), 3, dtype=torch.float64, requires_grad=True)
    kernels = torch.randn(kernels_batch, 3, *size, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(kernels_batch, 3, dtype=torch.float64, requires_grad=True)
    out = form(v, kernels, grid, bias=bias)
    rows = local_weights(kernels.expand(batch, *kernels.shape[1:]), grid, torch.arange(prod(grid)))
    dense = torch.einsum("bcmn,bnc->bmc", rows, v) + bias.unsqueeze(1)
    torch.testing.assert_close(out, dense, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(form(v, kernels, grid), dense - bias.unsqueeze(1), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(out, [v, kernels, bias]), gradients(dense, [v, kernels, bias]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_form_follows_where_it_runs():
    """An exported graph takes the shifted convolution, which has no convolution in it, everything else the grouped one."""
    v, kernels = torch.randn(2, 12, 4), torch.randn(2, 4, 3, 3)

    class Module(torch.nn.Module):
        def forward(self, v, kernels):
            return local_convolution(v, kernels, (3, 4))

    exported = torch.export.export(Module(), (v, kernels))
    assert not [node for node in exported.graph.nodes if "conv" in str(node.target)]
    torch.testing.assert_close(exported.module()(v, kernels), local_convolution(v, kernels, (3, 4)))
    with torch.profiler.profile() as profile:
        local_convolution(v, kernels, (3, 4))
    assert any("conv" in event.key for event in profile.key_averages())


@pytest.mark.parametrize(
    ("kernels", "grid", "message"),
    [
        ((2, 4, 3, 3), (3, 5), r"grid \(3, 5\) has 15 tokens, and with num_prefix_tokens=0 that is not the 12"),
        ((2, 4, 3), (3, 4), r"kernels \(2, 4, 3\) do not fit tokens \(2, 12, 4\) on grid \(3, 4\)"),
        ((3, 4, 3, 3), (3, 4), r"kernels \(3, 4, 3, 3\) do not fit"),
        ((2, 5, 3, 3), (3, 4), r"kernels \(2, 5, 3, 3\) do not fit"),
        (
            (2, 4, 3, 3, 3, 3),
            (3, 1, 2, 2),
            r"grid must be a tuple of 1, 2 or 3 whole numbers, such as \(H, W\), got \(3, 1, 2, 2\)",
        ),
    ],
)
def test_errors(kernels, grid, message):
    with pytest.raises(ValueError, match=message):
        local_convolution(torch.randn(2, 12, 4), torch.randn(kernels), grid)


def test_a_bias_that_does_not_fit():
    with pytest.raises(ValueError, match=r"bias \(4,\) does not fit kernels \(2, 4, 3, 3\)"):
        local_convolution(torch.randn(2, 12, 4), torch.randn(2, 4, 3, 3), (3, 4), bias=torch.randn(4))
