"""Maps are the weights that the model itself uses."""

import pytest
import timm
import torch

from inline_attention.analysis import map_plots
from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.map_plots import ImageMaps, draw_maps
from inline_attention.analysis.maps import QueryMap, one_grid, query_map, query_maps, rollout

from .models import images, make_model


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"])
@pytest.mark.parametrize("mixer", ["inline", "softmax", "linear", "hydra"])
def test_maps_of_every_layer(name, mixer):
    """Rows of the chosen query, laid out over the keys' map; the local part over the queries'."""
    model = make_model(name, mixer).train()
    seen = capture_pass(model, images())
    found = query_maps(model, images(), (0.5, 0.9))
    assert model.training
    assert [shown.layer for shown in found] == [layer.name for layer in seen]
    for shown, layer in zip(found, seen, strict=True):
        grid, prefix = layer.grid, layer.num_prefix_tokens
        assert shown.query == (int(0.5 * grid[0]), min(grid[1] - 1, int(0.9 * grid[1])))
        rows = layer.rows([prefix + shown.query[0] * grid[1] + shown.query[1]])
        skip = prefix if layer.whole else 0
        torch.testing.assert_close(shown.mixed.flatten(2), rows.mixed[:, :, 0, skip:])
        torch.testing.assert_close(shown.prefix, rows.mixed[:, :, 0, :skip])
        if layer.whole:
            assert shown.mixed.shape[2:] == grid
        if rows.local is None:
            assert shown.local is None
            continue
        heads = rows.mixed.shape[1]
        by_head = torch.stack([part.mean(1) for part in rows.local[:, :, 0, prefix:].chunk(heads, 1)], 1)
        torch.testing.assert_close(shown.local.flatten(2), by_head)


def test_a_place_must_be_on_the_grid():
    layer = capture_pass(make_model(), images())[0]
    with pytest.raises(ValueError, match=r"is not on the grid \(.*\) of stages\.0\.blocks\.0\.mixer"):
        query_map(layer, (layer.grid[0], 0))


@pytest.mark.parametrize("mixer", ["inline", "softmax", "linear"])
def test_rollout_is_the_product_of_all_layers(mixer):
    seen = capture_pass(make_model(mixer=mixer), images())
    layers = one_grid(seen.layers)
    assert layers == seen.layers
    place = (1, 2)
    product = torch.eye(layers[0].tokens)
    for layer in layers:
        rows = layer.rows(range(layer.tokens))
        heads = rows.mixed.shape[1]
        weights = rows.mixed.unsqueeze(2)
        if rows.local is not None:
            weights = weights + rows.local.unflatten(1, (heads, -1))
        weights = weights.abs().mean((1, 2))
        weights = weights / weights.sum(-1, keepdim=True)
        product = (weights + torch.eye(layer.tokens)) / 2 @ product
    expected = product[:, layers[0].index(place), layers[0].num_prefix_tokens :].unflatten(1, layers[0].grid)
    torch.testing.assert_close(rollout(layers, place), expected, atol=1e-6, rtol=1e-4)


def test_rollout_stays_on_one_grid():
    seen = capture_pass(make_model("inline_pvt_nano"), images())
    stage = one_grid(seen.layers)
    assert len({layer.grid for layer in stage}) == 1
    with pytest.raises(ValueError, match=r"does not have that of stages\.0\.blocks\.0\.mixer"):
        rollout(seen.layers, (0, 0))


def test_a_figure_of_maps_is_written(tmp_path):
    model = timm.create_model("inline_swin_nano", img_size=(16, 24), num_classes=3)
    maps = query_maps(model, torch.randn(1, 3, 16, 24), (0.5, 0.5))[:2]
    path = draw_maps([ImageMaps("one", torch.rand(16, 24, 3), maps)] * 2, tmp_path / "maps.png")
    assert path.stat().st_size > 5_000


def test_places_beyond_the_image_are_cut(monkeypatch, tmp_path):
    """A map of 2 x 3 places over an image that covers all rows, and two places and a half of the columns."""
    mixed = torch.tensor([[1.0, 2, 3], [4, 5, 6]])[None, None]
    found = QueryMap("stages.0.blocks.0.mixer", "inline", (1, 2), (2, 3), mixed, None, mixed[:, :, 0, :0], None, (1.0, 1.2))
    figures = []
    monkeypatch.setattr(map_plots, "save", lambda figure, path: figures.append(figure))
    map_plots.draw_global(torch.ones(20, 50, 3), [found], "a model", tmp_path / "a.png")
    map_plots.draw_heads([found], "a model", tmp_path / "b.png")
    for axis, (height, width) in zip([*figures[0].axes, *figures[1].axes], [(20, 50), (20, 50), (2, 2.5)], strict=True):
        assert axis.images[-1].get_extent() == pytest.approx([0, 1.2 * width, height, 0])
        assert (*axis.get_xlim(), *axis.get_ylim()) == pytest.approx((0, width, height, 0))
        (x,), (y,) = axis.lines[0].get_data()
        assert (x, y) == pytest.approx((0.9 * width, 0.75 * height))  # of the half of its place that is on the image
