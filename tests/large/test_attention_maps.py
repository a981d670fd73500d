"""Attention maps of streamed images: equal to the dense rows of the plain forward pass, whatever the bands."""

import pytest
import timm
import torch

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.maps import query_map
from inline_attention.large import attention_maps
from inline_attention.large.attention_maps import watch_point
from inline_attention.large.stream import stream
from inline_attention.layers import MIXERS
from inline_attention.layers.summed import SummedMixer

from ..dense.test_segmenter import randomised

SUMMED = [name for name, kind in MIXERS.items() if issubclass(kind, SummedMixer) and kind.is_weighted_sum]
POINT = (0.6, 0.3)


def made(name="inline_deit_nano", size=(96, 128), **options):
    torch.manual_seed(0)
    return randomised(timm.create_model(name, img_size=size, num_classes=3, **options)).double().eval()


def watched(model, image, tokens, mask=None):
    with watch_point(model, image.shape[2:], POINT) as found:
        stream(model, image, tokens=tokens, mask=mask)
    return found


def dense(model, image):
    with torch.no_grad():
        return {layer.name: query_map(layer, layer.place(POINT)) for layer in capture_pass(model, image)}


def by_head(mixed, heads):
    """(1, more, ...) -> (1, heads, ...): the mean over what each head has."""
    return mixed.unflatten(1, (heads, -1)).mean(2)


@pytest.mark.parametrize("mixer", SUMMED)
def test_the_maps_are_the_dense_rows(mixer):
    model, image = made(mixer=mixer, depth=2), torch.randn(1, 3, 96, 128, dtype=torch.float64)
    expected = dense(model, image)
    for tokens in (1, 40, 10**6) if mixer == "inline" else (40,):
        found = watched(model, image, tokens)
        assert found.left_out == []
        assert [one.layer for one in found.maps] == list(expected)
        for one in found.maps:
            other = expected[one.layer]
            assert (one.query, one.grid, one.kind) == (other.query, other.grid, other.kind)
            heads = one.mixed.shape[1]
            torch.testing.assert_close(one.mixed, by_head(other.mixed, heads), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(one.prefix, by_head(other.prefix, heads), rtol=1e-9, atol=1e-12)
            assert (one.local is None) == (other.local is None)
            if one.local is not None:
                torch.testing.assert_close(one.local, other.local, rtol=1e-9, atol=1e-12)
    assert "respond" not in vars(model.stages[0].blocks[0].mixer)


@pytest.mark.parametrize(("name", "left_out"), [("inline_pvt_nano", 0), ("inline_swin_nano", 6)])
def test_pyramids_and_windows(name, left_out):
    """Layers in windows are left out and named; those that take the map at once are not."""
    model, image = made(name, size=(160, 96)), torch.randn(1, 3, 160, 96, dtype=torch.float64)
    expected = dense(model, image)
    found = watched(model, image, 50)
    assert sorted([one.layer for one in found.maps] + found.left_out) == sorted(expected)
    for one in found.maps:
        torch.testing.assert_close(one.together, expected[one.layer].together, rtol=1e-9, atol=1e-12)


def test_a_map_has_no_more_places_than_are_drawn(monkeypatch):
    monkeypatch.setattr(attention_maps, "MOST_PLACES", 7)
    model, image = made(depth=1), torch.randn(1, 3, 96, 128, dtype=torch.float64)
    (one,), (other,) = watched(model, image, 30).maps, dense(model, image).values()
    assert (one.grid, one.tokens, one.size) == ((5, 7), (24, 32), "24 x 32")  # 5 x 5 tokens for a place
    assert one.query == (other.query[0] // 5, other.query[1] // 5)
    for row in range(5):
        for column in range(7):
            part = other.together[:, :, 5 * row : 5 * row + 5, 5 * column : 5 * column + 5]
            torch.testing.assert_close(one.together[:, :, row, column], part.mean((2, 3)) * 24 * 32 / 35)


@pytest.mark.parametrize("places", [256, 7])
def test_a_map_ends_with_the_image(places, monkeypatch):
    """Tokens of padding alone are left out; weights are those of the padded image, and the point is in the image's shares."""
    monkeypatch.setattr(attention_maps, "MOST_PLACES", places)
    model, image = made(depth=1), torch.randn(1, 3, 96, 128, dtype=torch.float64)
    point = (POINT[0] * 96 / 70, POINT[1] * 128 / 100)
    with watch_point(model, (96, 128), point, unpadded=(70, 100)) as found:
        stream(model, image, tokens=30)
    (whole,), (one,) = watched(model, image, 30).maps, found.maps
    step = 1 if places == 256 else 5
    rows, columns = (18, 25) if step == 1 else (4, 5)  # of 4 pixels a token
    assert (one.grid, one.query, one.tokens) == ((rows, columns), whole.query, (24, 32))
    assert one.span == pytest.approx((rows * step * 4 / 70, columns * step * 4 / 100))
    each, all_ = one.together * rows * columns, whole.together * whole.grid[0] * whole.grid[1]  # in even shares
    torch.testing.assert_close(each, all_[:, :, :rows, :columns])
    with watch_point(model, (96, 128), (1.0, 1.0), unpadded=(64, 64)) as found:
        stream(model, image, tokens=30)
    assert found.layers[0].query == (15, 15)  # not the first token of the padding


def test_what_is_masked_weighs_nothing():
    model, image = made(depth=2), torch.randn(1, 3, 96, 128, dtype=torch.float64)
    mask = torch.ones(96, 128, dtype=torch.bool)
    mask[:32] = False
    mask[:, 96:] = False
    image[0, :, ~mask] = torch.nan
    for one in watched(model, image, 20, mask).maps:
        rows, columns = one.grid
        assert (one.mixed[:, :, : rows // 3] == 0).all()
        assert (one.mixed[:, :, :, 3 * columns // 4 :] == 0).all()
        torch.testing.assert_close(one.mixed.sum((2, 3)) + one.prefix.sum(2), torch.ones(1, one.mixed.shape[1]).double())
