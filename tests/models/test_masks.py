"""Masks of images: masked pixels change nothing, and a mask at the border is the same as a smaller image."""

import pytest
import torch
from timm.models import create_model

from inline_attention.ops.masks import check_image_mask, pool_valid, reduce_mask

MODELS = [
    pytest.param("inline_deit_nano", {"depth": 2}, id="deit"),
    pytest.param(
        "inline_deit_nano", {"mixer": "softmax", "global_pool": "avgmax", "local": True, "depth": 2}, id="deit-softmax"
    ),
    pytest.param("inline_pvt_nano", {"class_token": True}, id="pvt"),
    pytest.param("inline_pvt_nano", {"mixer": "softmax", "local": True}, id="pvt-softmax"),
    pytest.param("inline_swin_nano", {}, id="swin"),
    pytest.param("inline_swin_nano", {"inline_window": 4, "kernel": "relu"}, id="swin-windows"),
    pytest.param("inline_swin_nano", {"mixer": "softmax", "global_pool": "max"}, id="swin-softmax"),
    pytest.param("inline_cswin_nano", {}, id="cswin"),
    pytest.param("inline_cswin_nano", {"mixer": "focused", "inline_depths": (1, 1, 1, 0)}, id="cswin-focused"),
    pytest.param("inline_pvt_nano", {"mixer": "enhanced"}, id="pvt-enhanced"),
]


def made(name, **options):
    torch.manual_seed(0)
    return create_model(name, num_classes=5, **options).double().eval()


def scattered(height, width):
    """Valid patches here and there, a row of windows without any, and single valid pixels."""
    mask = (torch.rand(2, -(-height // 8), -(-width // 8)) > 0.5).repeat_interleave(8, 1).repeat_interleave(8, 2)
    mask = mask[:, :height, :width].clone()
    mask[:, : height // 3] = False
    mask[:, 3, 5] = mask[1, 0, -1] = True
    return mask


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_what_is_masked_changes_nothing(name, options):
    """Neither logits, nor features, nor gradients; and invalid tokens are zero in what comes out."""
    model = made(name, **options)
    image, mask = torch.randn(2, 3, 37, 50, dtype=torch.float64), scattered(37, 50)
    results = []
    garbage = torch.tensor([1e9, float("nan"), float("inf")], dtype=torch.float64)[torch.randint(3, image.shape)]
    for masked in (torch.zeros_like(image), garbage):
        given = image.where(mask.unsqueeze(1), masked).requires_grad_()
        model.zero_grad()
        features, maps = model.forward_intermediates(given, norm=True, mask=mask)
        logits = model.forward_head(features, mask=mask)
        (logits.square().sum() + sum(each.square().sum() for each in maps)).backward()
        results.append([logits, *maps, given.grad, *(p.grad for p in model.parameters() if p.grad is not None)])
        stride = 1
        for number, information in enumerate(model.feature_info):
            stride = information["reduction"]
            empty = ~reduce_mask(mask, stride).unsqueeze(1).expand_as(maps[number])
            assert not maps[number][empty].any()
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert all(value.isfinite().all() for value in results[0])
    assert not results[0][1 + len(maps)][~mask.unsqueeze(1).expand_as(image)].any()
    torch.testing.assert_close(model(image, mask), results[0][0])
    assert not torch.allclose(model(image), results[0][0])


@pytest.mark.parametrize(("name", "options"), [m for m in MODELS if "inline_window" not in m.values[1]])
def test_a_mask_at_the_border_is_a_smaller_image(name, options):
    """96 x 96 pixels with 80 x 80 valid are an image of 80 x 80, its positions those of the larger one.

    Not for linear mixers in shifted windows, which see across the border to the other side of the map.
    """
    patch = 8 if "deit" in name else 2
    large, small = (made(name, img_size=side, patch_size=patch, **options) for side in (96, 80))
    state = large.state_dict()
    for key, value in small.state_dict().items():
        if key.endswith("positions.grid"):
            state[key] = state[key][:, : value.shape[1], : value.shape[2]]
    small.load_state_dict(state)
    image, mask = torch.randn(2, 3, 96, 96, dtype=torch.float64), torch.zeros(2, 96, 96, dtype=torch.bool)
    mask[:, :80, :80] = True
    corner = image[:, :, :80, :80]
    close = {"rtol": 1e-10, "atol": 1e-10}
    _, maps = large.forward_intermediates(image, mask=mask)
    _, expected = small.forward_intermediates(corner)
    for ours, theirs in zip(maps, expected, strict=True):
        torch.testing.assert_close(ours[:, :, : theirs.shape[2], : theirs.shape[3]], theirs, **close)
    torch.testing.assert_close(large(image, mask), small(corner), **close)


@pytest.mark.parametrize(("name", "options"), [*MODELS[:1], *MODELS[4:5]])
def test_a_mask_without_gaps_is_no_mask(name, options):
    """And the same with checkpointing, in a batch with other masks, in half precision finite."""
    model = made(name, **options)
    image, mask = torch.randn(2, 3, 37, 50, dtype=torch.float64), torch.ones(2, 37, 50, dtype=torch.bool)
    torch.testing.assert_close(model(image, mask), model(image), rtol=1e-10, atol=1e-10)
    mask[1, 20:] = False
    out = model(image, mask)
    torch.testing.assert_close(out[:1], model(image[:1]), rtol=1e-10, atol=1e-10)
    model.set_grad_checkpointing()
    torch.testing.assert_close(model(image.requires_grad_(), mask), out)


def test_a_token_is_valid_if_a_pixel_of_its_own_is():
    mask = torch.zeros(1, 5, 7, dtype=torch.bool)
    mask[0, 4, 6] = mask[0, 0, 3] = True
    assert reduce_mask(mask, 2).nonzero().tolist() == [[0, 0, 1], [0, 2, 3]]
    assert torch.equal(reduce_mask(reduce_mask(mask, 2), 2), reduce_mask(mask, 4))
    assert reduce_mask(mask, 1) is mask


def test_pooling_over_valid_tokens(monkeypatch):
    tokens, mask = torch.randn(2, 7, 3), torch.tensor([[True] * 4 + [False] * 3, [False] * 6 + [True]])
    tokens[~mask] = float("nan")
    mean = torch.stack([tokens[0, :4].mean(0), tokens[1, 6]])
    largest = torch.stack([tokens[0, :4].amax(0), tokens[1, 6]])
    for chunk in (2, 100):
        monkeypatch.setattr("inline_attention.ops.masks.POOL_CHUNK", chunk)
        torch.testing.assert_close(pool_valid(tokens, mask, "avg"), mean)
        torch.testing.assert_close(pool_valid(tokens, mask, "max"), largest)
        torch.testing.assert_close(pool_valid(tokens, mask, "avgmax"), (mean + largest) / 2)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (torch.ones(1, 32, 32), "mask must be a boolean tensor, True where a pixel is valid, got torch.float32"),
        (torch.ones(1, 32, 31, dtype=torch.bool), r"mask must be \(batch, height, width\) = \(1, 32, 32\), got \(1, 32, 31\)"),
        (torch.zeros(1, 32, 32, dtype=torch.bool), "that of image 0 of the batch has none"),
    ],
)
def test_wrong_masks(mask, said):
    model = made("inline_pvt_nano")
    with pytest.raises(ValueError, match=said):
        model(torch.zeros(1, 3, 32, 32, dtype=torch.float64), mask)


def test_a_mask_that_does_not_fit_the_last_map():
    model = made("inline_pvt_nano")
    with pytest.raises(ValueError, match=r"mask \(1, 50, 50\) fits neither the image nor the 4 tokens of its last map"):
        model.forward_head(torch.zeros(1, 128, 2, 2, dtype=torch.float64), mask=torch.ones(1, 50, 50, dtype=torch.bool))
    check_image_mask(torch.ones(1, 2, 3, dtype=torch.bool, device="meta"), torch.zeros(1, 3, 2, 3, device="meta"))
