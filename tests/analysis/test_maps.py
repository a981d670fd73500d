"""Maps are the rows that the model itself uses."""

import pytest
import timm
import torch

from inline_attention.analysis.maps import query_maps
from inline_attention.analysis.plots import Looked, draw_maps
from inline_attention.layers.mixer import Mixer


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"])
@pytest.mark.parametrize("mixer", ["inline", "softmax", "linear"])
def test_maps_of_every_block(name, mixer):
    """Rows of the chosen query, from the block's own input; hooks are gone afterwards."""
    model = timm.create_model(name, img_size=(16, 24), num_classes=3, mixer=mixer)
    pixels = torch.randn(2, 3, 16, 24)
    seen = {}

    def keep(key):
        return lambda module, inputs, options: seen.update({key: (inputs, options)})

    mixers = {key: module for key, module in model.named_modules() if isinstance(module, Mixer)}
    hooks = [module.register_forward_pre_hook(keep(key), with_kwargs=True) for key, module in mixers.items()]
    with torch.no_grad():
        model.eval()(pixels)
    for hook in hooks:
        hook.remove()
    found = query_maps(model.train(), pixels, (0.5, 0.9))
    assert model.training
    assert found
    assert not any(module._forward_pre_hooks for module in mixers.values())
    for shown in found:
        (x, grid), options = seen[shown.block]
        prefix = options["num_prefix_tokens"]
        y, x_place = int(0.5 * grid[0]), min(grid[1] - 1, int(0.9 * grid[1]))
        assert shown.query == (y, x_place)
        rows = mixers[shown.block].attention_rows(x, grid, [prefix + y * grid[1] + x_place], **options)
        torch.testing.assert_close(shown.mixed.flatten(1), rows.mixed[:, :, 0, prefix:].mean(1))
        if rows.local is not None:
            torch.testing.assert_close(shown.local.flatten(1), rows.local[:, :, 0, prefix:].mean(1))


def test_a_picture_is_drawn(tmp_path):
    model = timm.create_model("inline_swin_nano", img_size=(16, 24), num_classes=3)
    maps = query_maps(model, torch.randn(1, 3, 16, 24), (0.5, 0.5))[:2]
    path = draw_maps([Looked("one", torch.rand(16, 24, 3), maps)] * 2, tmp_path / "maps.png")
    assert path.stat().st_size > 5_000
