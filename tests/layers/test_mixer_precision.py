"""Every mixer in half precision, in and out of autocast."""

import pytest
import torch

from .variants import VARIANTS, build


def in_half_and_full_precision(name, options, dtype, autocast, count, size, dim=8, offset=0.0):
    """Output and gradient in half precision and in fp32, from the same rounded inputs."""
    grid, prefix = ((14, 14), 1) if count == 197 else ((1, count), 0) if count < 64 else ((count // 64, 64), 0)
    mixer = build(name, dim, dtype=torch.float32, **options)
    x = (size * torch.randn(1, count, dim) + offset * torch.randn(dim)).to(dtype)
    results = []
    for low in (True, False):
        given = x.to(dtype if low and not autocast else torch.float32).requires_grad_()
        mixer = mixer.to(dtype if low and not autocast else torch.float32)
        with torch.autocast("cpu", dtype, enabled=low and autocast):
            out = mixer(given, grid, num_prefix_tokens=prefix)
        projected = name != "mila"  # whose values are the input, and which has no output projection for autocast to cast
        assert out.dtype is (dtype if low and (projected or not autocast) else torch.float32)
        (grad,) = torch.autograd.grad(out.float().square().mean(), given)
        results.append((out.detach().float(), grad.float()))
    return results


HALF = [torch.float16, torch.bfloat16]
PRECISIONS = [
    pytest.param(
        dtype, autocast, count, marks=[] if (dtype is torch.float16) == (autocast is (count > 197)) else pytest.mark.slow
    )
    for dtype in HALF
    for autocast in (False, True)
    for count in (197, 65_536)
]
"""Half of them by default: each dtype with each length, in and out of autocast; the others by `make slow`."""


@pytest.mark.parametrize("options", [options.values[1] for options in VARIANTS if options.values[0] == "inline"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 197, 65_536])
def test_inline_in_half_precision_is_near_fp32(options, dtype, autocast, count):
    (out, grad), (expected, expected_grad) = in_half_and_full_precision("inline", options, dtype, autocast, count, size=30)
    rounding = torch.finfo(dtype).eps
    assert out.isfinite().all()
    assert grad.isfinite().all()
    assert (out - expected).abs().max() < 4 * rounding * expected.abs().max()
    assert (grad - expected_grad).norm() < 8 * rounding * expected_grad.norm()


@pytest.mark.parametrize("options", [options.values[1] for options in VARIANTS if options.values[0] == "inline"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_common_offset_does_not_spoil_the_covariance(options, autocast):
    """Values of rounded weights are centred by their own mean: an offset of 30 leaves bf16 as good as without."""
    (out, _), (expected, _) = in_half_and_full_precision(
        "inline", options, torch.bfloat16, autocast, 197, size=1, dim=64, offset=30.0
    )
    assert (out - expected).norm() < 2 * torch.finfo(torch.bfloat16).eps * expected.norm()


def assert_finite_and_near_fp32(name, options, dtype, autocast, count):
    (out, grad), (expected, _) = in_half_and_full_precision(name, options, dtype, autocast, count, size=1)
    assert out.isfinite().all()
    assert grad.isfinite().all()
    rounding = torch.finfo(dtype).eps
    assert (out - expected).norm() < 4 * rounding * expected.norm()


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize(("dtype", "autocast", "count"), PRECISIONS)
def test_every_mixer_is_finite_and_near_fp32_in_half_precision(name, options, dtype, autocast, count):
    if name == "softmax":
        count = min(count, 2048)  # quadratic
    assert_finite_and_near_fp32(name, options, dtype, autocast, count)


@pytest.mark.slow
@pytest.mark.parametrize("options", [options.values[1] for options in VARIANTS if options.values[0] == "softmax"])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("autocast", [False, True])
def test_softmax_of_4096_tokens_in_half_precision(options, dtype, autocast):
    assert_finite_and_near_fp32("softmax", options, dtype, autocast, 4096)
