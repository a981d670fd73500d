"""Inference of segmenters: classes a few at a time against all at once, sliding windows against a loop over pixels."""

import pytest
import torch
import torch.nn.functional as F

from inline_attention.dense.inference import CLASSES_AT_ONCE, argmax_labels, slide
from inline_attention.dense.pyramid import make_pyramid
from inline_attention.dense.segmenter import Segmenter, upsample_logits


@pytest.mark.parametrize("classes", [2, CLASSES_AT_ONCE, 3 * CLASSES_AT_ONCE + 1])
def test_labels_and_loss_are_those_of_all_classes_at_once(classes):
    logits, truth = torch.randn(classes, 5, 7), torch.randint(0, classes, (10, 14))
    truth[0, :5] = 255

    def upsample(part):
        return F.interpolate(part[None], (10, 14), mode="bilinear")[0]

    found = argmax_labels(logits, upsample, truth)
    whole = upsample(logits)
    assert torch.equal(found.labels, whole.argmax(0))
    assert found.loss == pytest.approx(
        float(F.cross_entropy(whole[None], truth[None], ignore_index=255, reduction="sum")), rel=1e-5
    )
    assert argmax_labels(logits, upsample).loss == 0


def test_coarse_logits_are_upsampled_to_those_of_the_segmenter():
    model, pixels = Segmenter(make_pyramid("inline_pvt_nano", {}), "upernet", 5, width=32).eval(), torch.randn(2, 3, 45, 70)
    with torch.no_grad():
        torch.testing.assert_close(upsample_logits(model.coarse_logits(pixels), (45, 70)), model(pixels))


def ranked(pixels):
    """Logits that depend on where a pixel lies in its window, and on the window's size."""
    height, width = pixels.shape[2:]
    place = torch.arange(height, dtype=pixels.dtype)[:, None] + 10 * torch.arange(width, dtype=pixels.dtype)
    return torch.cat([pixels[:, :1] + place, pixels[:, 1:2] * pixels.mean((1, 2, 3), keepdim=True)], 1)


def starts(length, crop, stride):
    """Written down step by step, as one would by hand."""
    found, at = [], 0
    while at + crop < length:
        found.append(at)
        at += stride
    return [*found, max(length - crop, 0)]


@pytest.mark.parametrize(
    ("size", "crop", "stride"),
    [
        ((13, 17), (6, 8), (4, 5)),
        ((12, 12), (6, 6), (3, 3)),
        ((5, 19), (8, 7), (8, 2)),
        ((9, 9), (16, 16), (11, 11)),
        ((7, 6), (6, 6), (1, 6)),
    ],
)
def test_each_pixel_is_the_mean_of_its_windows(size, crop, stride):
    pixels = torch.randn(2, 3, *size, dtype=torch.float64)
    found = slide(ranked, pixels, crop, stride)
    assert found.shape == (2, 2, *size)
    windows = [
        (top, left, ranked(pixels[..., top : top + crop[0], left : left + crop[1]]))
        for top in starts(size[0], crop[0], stride[0])
        for left in starts(size[1], crop[1], stride[1])
    ]
    for row in range(size[0]):
        for column in range(size[1]):
            said = [
                logits[:, :, row - top, column - left]
                for top, left, logits in windows
                if 0 <= row - top < logits.shape[2] and 0 <= column - left < logits.shape[3]
            ]
            torch.testing.assert_close(found[:, :, row, column], torch.stack(said).mean(0))


def test_window_positions_by_hand():
    seen = []

    def model(pixels):
        seen.append((int(pixels[0, 0, 0, 0]), int(pixels[0, 0, -1, -1])))
        return pixels

    numbered = torch.arange(10.0).view(1, 1, 1, 10).expand(1, 1, 3, 10)
    slide(model, numbered, (8, 4), (8, 3))
    assert seen == [(0, 3), (3, 6), (6, 9)]
    seen.clear()
    slide(model, numbered[..., :9], (3, 4), (3, 3))
    assert seen == [(0, 3), (3, 6), (5, 8)], "the last is moved back"


def test_a_constant_model_gives_its_constants():
    def model(pixels):
        return torch.tensor([3.0, -1.0]).view(1, 2, 1, 1).expand(len(pixels), 2, *pixels.shape[2:])

    found = slide(model, torch.randn(2, 3, 23, 31), (8, 8), (5, 7))
    assert found.shape == (2, 2, 23, 31)
    assert (found[:, 0] == 3).all()
    assert (found[:, 1] == -1).all()


def test_windows_that_fit_exactly_are_tiles():
    pixels = torch.randn(1, 3, 12, 8)
    found = slide(ranked, pixels, (4, 4), (4, 4))
    for top in range(0, 12, 4):
        for left in range(0, 8, 4):
            tile = ranked(pixels[..., top : top + 4, left : left + 4])
            assert found[..., top : top + 4, left : left + 4].equal(tile)


def test_half_precision_is_summed_in_float32():
    found = slide(lambda pixels: pixels.bfloat16(), torch.full((1, 1, 9, 9), 1.0), (3, 3), (1, 1))
    assert found.dtype == torch.float32
    assert (found == 1).all()


@pytest.mark.parametrize(("crop", "stride"), [((4, 4), (5, 4)), ((4, 4), (0, 4)), ((4, 0), (4, 0))])
def test_strides_that_leave_gaps_raise(crop, stride):
    with pytest.raises(
        ValueError, match=r"^windows of .* every .*: each step must be at least 1, and at most the window's side$"
    ):
        slide(ranked, torch.zeros(1, 3, 8, 8), crop, stride)
