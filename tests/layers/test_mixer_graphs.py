"""Every mixer compiled, and exported with dynamic batch and grid."""

import pytest
import torch

from ..dense_form import gradients
from .variants import RIVALS, VARIANTS, build, random_mask


class OnImages(torch.nn.Module):
    """(B, C, H, W) through a mixer, so that a graph can have a dynamic grid."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, image):
        return self.mixer(image.flatten(2).mT, tuple(image.shape[2:]))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_export_with_dynamic_batch_and_grid(name, options):
    model = OnImages(build(name, dtype=torch.float32, **options))
    batch, height, width = (torch.export.Dim(side, min=1, max=4096) for side in ("batch", "height", "width"))
    exported = torch.export.export(
        model, (torch.randn(2, 8, 5, 6),), dynamic_shapes=({0: batch, 2: height, 3: width},)
    ).module()
    for shape in ((2, 8, 5, 6), (1, 8, 14, 9), (5, 8, 2, 31), (3, 8, 16, 16)):
        image = torch.randn(shape)
        torch.testing.assert_close(exported(image), model(image), rtol=1e-5, atol=1e-5)


INDUCTOR = ("inline-local-folded",)
"""Compiled to machine code in every run, which takes seconds each; the others only by `make slow`."""


def slow_unless(condition):
    return [pytest.param(*v.values, id=v.id, marks=[] if condition(v) else pytest.mark.slow) for v in VARIANTS]


@pytest.mark.parametrize(
    ("name", "options"), slow_unless(lambda v: v.values[0] == "inline" or ("local" in v.id) != (v.values[0] in RIVALS))
)
def test_graphs_are_whole_and_equal_eager(name, options):
    """Traced without a break, forward and backward."""
    check_compiled(name, options, "aot_eager")


@pytest.mark.parametrize(("name", "options"), slow_unless(lambda v: v.id in INDUCTOR))
def test_compiled_equals_eager(name, options):
    check_compiled(name, options, "inductor")


def check_compiled(name, options, backend):
    torch.compiler.reset()
    mixer = build(name, dtype=torch.float32, **options)
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    x = torch.randn(2, 13, 8, requires_grad=True)
    call = {"num_prefix_tokens": 1, "mask": random_mask(2, 13)}
    ours, eager = compiled(x, (3, 4), **call), mixer(x, (3, 4), **call)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(ours, [x]), gradients(eager, [x]), rtol=1e-4, atol=1e-5)
