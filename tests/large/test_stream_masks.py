"""Masks in `stream`: the plain masked forward pass, without reading or computing what is masked; and chosen maps."""

import numpy as np
import pytest
import torch
from timm.models import create_model

from inline_attention import stream
from inline_attention.large.image_reader import RowReader, image_for
from inline_attention.layers import Block

LINEAR = [
    pytest.param("inline_deit_nano", {"depth": 2, "patch_size": 4}, id="deit"),
    pytest.param("inline_pvt_nano", {"class_token": True, "kernel": "relu", "rope": "all"}, id="pvt-class-token-relu-rope"),
    pytest.param("inline_pvt_nano", {"mixer": "efficient", "global_pool": "avgmax"}, id="pvt-efficient-avgmax"),
    pytest.param("inline_cswin_nano", {"mixer": "focused", "inline_depths": (1, 1, 2, 1), "local": True}, id="cswin-focused"),
    pytest.param("inline_pvt_nano", {"mixer": "hydra"}, id="pvt-hydra"),
]


def made(name, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return create_model(name, num_classes=5, **options).to(dtype).eval()


def island(height, width):
    """Two islands with ragged coasts, nothing above, between and below."""
    mask = np.random.default_rng(0).random((height, width)) > 0.6
    mask[: height // 5] = mask[height // 2 : 3 * height // 4] = False
    mask[-3:] = False
    return mask


@pytest.mark.parametrize(("name", "options"), LINEAR)
@pytest.mark.parametrize(("size", "tokens"), [((96, 33), 20), ((45, 70), 10**6)])
def test_a_masked_image_gives_what_the_plain_pass_gives(name, options, size, tokens):
    """With garbage under the mask, from a tensor."""
    model = made(name, **options)
    model.set_input_size(size)
    mask = torch.from_numpy(island(*size))
    image = torch.randn(1, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        features, maps = model.forward_intermediates(image, norm=True, mask=mask[None])
        logits = model(image, mask[None])
    spoilt = image.masked_fill(~mask, float("nan"))
    streamed = stream(model, spoilt, tokens=tokens, mask=mask)
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(streamed.logits, logits, **close)
    torch.testing.assert_close(streamed.features, features, **close)
    for ours, plain in zip(streamed.maps, maps if len(streamed.maps) > 1 else maps[-1:], strict=True):
        torch.testing.assert_close(ours, plain, **close)


@pytest.mark.parametrize("kind", ["array", "tensor", "function", "memory-mapped", "reader", "spoilt array"])
def test_masks_from_everywhere_are_the_same(kind, tmp_path):
    model, mask = made("inline_pvt_nano", torch.float32), island(40, 56)
    pixels = np.random.default_rng(0).random((40, 56, 3))
    np.save(tmp_path / "mask.npy", mask)
    expected = stream(model, pixels, mask=mask, tokens=30).logits
    with torch.no_grad():
        plain = model(image_for(model, pixels).read(0, 40), torch.from_numpy(mask)[None])
    torch.testing.assert_close(expected, plain, rtol=1e-5, atol=1e-5)
    given = {
        "tensor": torch.from_numpy(mask),
        "function": lambda start, stop: mask[start:stop],
        "memory-mapped": np.load(tmp_path / "mask.npy", mmap_mode="r"),
        "reader": None,
    }.get(kind, mask)
    if kind == "reader":
        pixels = image_for(model, pixels)._replace(valid=lambda start, stop: torch.from_numpy(mask[start:stop]))
    if kind == "spoilt array":
        pixels[~mask] = np.nan
    assert torch.equal(stream(model, pixels, mask=given, tokens=30).logits, expected)
    assert not torch.allclose(
        stream(model, np.nan_to_num(pixels) if kind != "reader" else pixels, mask=np.ones_like(mask)).logits, expected
    )


def test_bands_without_valid_tokens_are_left_out(monkeypatch):
    """Neither read, nor computed; they count as done, and are zero in the maps."""
    read, responded, counts = [], [], []
    image, respond = torch.randn(1, 3, 96, 40), Block.respond
    monkeypatch.setattr(
        Block, "respond", lambda self, x, *a, **k: (responded.append(k["place"].first_row), respond(self, x, *a, **k))[1]
    )
    source = RowReader(96, 40, lambda a, b: (read.append((a, b)), image[:, :, a:b])[1])
    mask = torch.zeros(96, 40, dtype=torch.bool)
    mask[13:17, 5] = mask[80:] = True
    model = made("inline_swin_nano", torch.float32, inline_depths=(1, 1, 2, 1))
    streamed = stream(model, source, mask=mask, tokens=1, progress=lambda *now: counts.append(now))
    assert read == [(row, row + 2) for row in (12, 14, 16, *range(80, 96, 2))]
    assert len(responded) == (3 + 8) + (2 + 4) + 2 * (2 + 2) + (2 + 1)
    assert counts[-1][0] == counts[-1][1] == 2 * 48 + 2 * 24 + 3 * 12 + 2 * 6
    assert {total for _, total in counts} == {counts[-1][1]}
    assert [done for done, _ in counts] == sorted({done for done, _ in counts})
    assert not streamed.maps[0][:, :, :6].any()
    assert not streamed.maps[0][:, :, 9:40].any()
    assert streamed.maps[0][:, :, 6:9, 2].any(1).all()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.zeros((40, 57), bool), r"mask must be \(height, width\) = \(40, 56\), got \(40, 57\)"),
        (np.zeros((40, 56), np.uint8), r"rows 0 to 39 of the mask must be boolean, \(40, 56\), got torch.uint8 \(40, 56\)"),
        (lambda start, stop: torch.ones(3, 56, dtype=torch.bool), r"must be boolean, \(40, 56\), got torch.bool \(3, 56\)"),
        (7, r"a mask is a boolean array \(H, W\) or a function that returns rows of one, got int"),
        (np.zeros((40, 56), bool), "the mask has no valid pixel: there is nothing to look at"),
    ],
)
def test_wrong_masks_are_refused(mask, said):
    with pytest.raises(ValueError, match=said):
        stream(made("inline_pvt_nano"), torch.zeros(3, 40, 56, dtype=torch.float64), mask=mask)


def test_a_valid_pixel_must_have_a_number():
    image, mask = torch.zeros(3, 40, 56), torch.ones(40, 56, dtype=torch.bool)
    image[1, 20, 7] = float("inf")
    with pytest.raises(ValueError, match=r"the image has pixels that are not finite \(NaN or infinity\) in rows 20 to 21"):
        stream(made("inline_pvt_nano", torch.float32), image, mask=mask, tokens=1)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize(
    ("name", "indices"),
    [("inline_deit_nano", [0, 2, 3, 2]), ("inline_deit_nano", 2), ("inline_pvt_nano", [3, 0]), ("inline_swin_nano", [1, 3])],
)
@pytest.mark.parametrize("masked", [False, True])
def test_chosen_maps(name, indices, norm, masked):
    """As `forward_intermediates` gives them: of a plain ViT the tokens after some blocks."""
    model = made(name, **({"depth": 4, "patch_size": 4} if "deit" in name else {}))
    model.set_input_size((48, 37))
    image, mask = torch.randn(1, 3, 48, 37, dtype=torch.float64), torch.from_numpy(island(48, 37))
    given = mask if masked else None
    with torch.no_grad():
        expected = model.forward_intermediates(
            image, indices, norm=norm, intermediates_only=True, mask=None if given is None else given[None]
        )
    streamed = stream(model, image, indices=indices, norm=norm, mask=given, tokens=50)
    for ours, plain in zip(streamed.maps, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(streamed.features, model.forward_features(image, None if given is None else given[None]))


def test_maps_that_there_are_not():
    with pytest.raises(ValueError, match=r"the model has 4 features, 0 to 3, got indices \[4\]"):
        stream(made("inline_pvt_nano"), torch.zeros(3, 40, 56, dtype=torch.float64), indices=[4])
