"""Every mixer compiled, and exported with dynamic batch and grid."""

import pytest
import torch

from ..dense_form import gradients
from .variants import VARIANTS, build, random_mask


class OnPictures(torch.nn.Module):
    """(B, C, H, W) through a mixer, so that a graph can have a dynamic grid."""

    def __init__(self, mixer):
        super().__init__()
        self.mixer = mixer

    def forward(self, picture):
        return self.mixer(picture.flatten(2).mT, tuple(picture.shape[2:]))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_export_with_dynamic_batch_and_grid(name, options):
    model = OnPictures(build(name, dtype=torch.float32, **options))
    batch, height, width = (torch.export.Dim(side, min=1, max=4096) for side in ("batch", "height", "width"))
    exported = torch.export.export(
        model, (torch.randn(2, 8, 5, 6),), dynamic_shapes=({0: batch, 2: height, 3: width},)
    ).module()
    for shape in ((2, 8, 5, 6), (1, 8, 14, 9), (5, 8, 2, 31), (3, 8, 16, 16)):
        picture = torch.randn(shape)
        torch.testing.assert_close(exported(picture), model(picture), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_compiled_equals_eager(name, options):
    torch.compiler.reset()
    mixer = build(name, dtype=torch.float32, **options)
    compiled = torch.compile(mixer, fullgraph=True)
    x = torch.randn(2, 13, 8, requires_grad=True)
    call = {"num_prefix_tokens": 1, "mask": random_mask(2, 13)}
    ours, eager = compiled(x, (3, 4), **call), mixer(x, (3, 4), **call)
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients(ours, [x]), gradients(eager, [x]), rtol=1e-4, atol=1e-5)
