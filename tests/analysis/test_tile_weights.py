"""Weights of the tiles of a bag: the class token's own row, the mean of all rows, shared tokens, and the files of maps."""

import json

import pytest
import timm
import torch

from inline_attention.analysis.tile_maps import attention_measurements, draw_tile_weights, write_geojson
from inline_attention.analysis.tile_weights import tile_weights
from inline_attention.data.bag import to_maps

DEIT = {"patch_size": 1, "in_chans": 5, "num_classes": 2, "embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 16}
PYRAMID = {"patch_size": 1, "in_chans": 5, "num_classes": 2, "img_size": 16}


def bag(seed=0, cells=130):
    generator = torch.Generator().manual_seed(seed)
    places = torch.randperm(cells, generator=generator)[:50]
    places = torch.stack([places // 13, places % 13], 1)
    features = torch.randn(50, 5, generator=generator)
    return places, *to_maps([{"features": features, "places": places}], 8)


@pytest.mark.parametrize("mixer", ["inline", "softmax", "mala"])
def test_the_last_row_of_the_class_token_makes_its_output(mixer):
    torch.manual_seed(0)
    model = timm.create_model("inline_deit_nano", mixer=mixer, **DEIT).eval()
    places, maps, mask = bag()
    seen = []
    block = model.stages[0].blocks[1].mixer
    hook = block.register_forward_hook(lambda module, given, options, out: seen.append((given, options, out)), with_kwargs=True)
    with torch.no_grad():
        model(maps, mask)
    hook.remove()
    (x, grid), options, out = seen[0]
    found = tile_weights(model, maps, mask, places)
    assert (found.layer, found.kind, found.whose) == ("stages.0.blocks.1.mixer", mixer, "class token")
    assert found.weights.shape == (2, 50)
    _, _, values = block.project(x, grid, **{name: value for name, value in options.items() if name != "local_input"})
    order = 1 + places[:, 0] * grid[1] + places[:, 1]
    mixed = torch.einsum("hn,hnd->hd", found.weights, values[0][:, order]) + found.rest[:, None] * values[0][:, 0]
    gated = block.proj(mixed.flatten())
    assert torch.allclose(gated, out[0, 0], atol=1e-5)
    if mixer == "softmax":
        assert torch.allclose(found.weights.sum(1) + found.rest, torch.ones(2), atol=1e-5)


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"])
def test_garbage_under_the_mask_and_the_order_of_the_tiles_change_nothing(name):
    torch.manual_seed(0)
    model = timm.create_model(name, **(DEIT if "deit" in name else PYRAMID)).eval()
    places, maps, mask = bag()
    found = tile_weights(model, maps, mask, places)
    dirty = torch.where(mask[:, None], maps, torch.full_like(maps, 1e4))
    again = tile_weights(model, dirty, mask, places.flip(0))
    assert torch.allclose(found.weights, again.weights.flip(1), atol=1e-6)
    if name in ("inline_pvt_nano", "inline_swin_nano"):  # a row of InLine sums to one: shared weights must too
        assert torch.allclose(found.weights.sum(1) + found.rest, torch.ones(len(found.weights)), atol=1e-4)


def test_the_mean_of_all_tiles_is_the_mean_of_the_rows(monkeypatch):
    torch.manual_seed(0)
    model = timm.create_model("inline_swin_nano", **PYRAMID).eval()
    places, maps, mask = bag()
    whole = tile_weights(model, maps, mask, places, 0)
    assert whole.whose == "mean of all tiles"
    monkeypatch.setattr("inline_attention.analysis.tile_weights.CHUNK", 500)
    assert torch.allclose(tile_weights(model, maps, mask, places, 0).weights, whole.weights, atol=1e-6)
    assert tile_weights(model, maps, mask, places, 3).weights.shape == (4, 50)
    with pytest.raises(ValueError, match="there is no layer 9: they are numbered from 0 to 4, or -1"):
        tile_weights(model, maps, mask, places, 9)


def test_maps_are_written(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("inline_deit_nano", **DEIT).eval()
    places, maps, mask = bag()
    found = tile_weights(model, maps, mask, places)
    coords = places.flip(1) * 256 + 7
    path = write_geojson(tmp_path / "a.geojson", coords, 256, attention_measurements(found))
    features = json.loads(path.read_text())["features"]
    assert len(features) == 50
    x, y = coords[3].tolist()
    ring = features[3]["geometry"]["coordinates"][0]
    assert ring == [[x, y], [x + 256, y], [x + 256, y + 256], [x, y + 256], [x, y]]
    measured = features[3]["properties"]["measurements"]
    assert measured["attention"] == pytest.approx(float(found.mean[3]))
    assert measured["attention over even share"] == pytest.approx(51 * float(found.mean[3]))
    with pytest.raises(IndexError):
        write_geojson(tmp_path / "b.geojson", coords, 256, {"short": found.mean[:3]})
    assert draw_tile_weights([("a", places, found)] * 5, tmp_path / "a.png").stat().st_size > 1000
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.geojson", "a.png"]
