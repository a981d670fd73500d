"""Segmentation in bands gives what the segmenter gives to the whole image, and computes each row once."""

import re
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

from inline_attention.dense.segmenter import SEGMENTERS, SemanticFpn
from inline_attention.large import row_maps
from inline_attention.large.decoder_rows import check_decoder, coarse_logit_rows, file_shapes
from inline_attention.large.row_maps import kept, rows_of
from inline_attention.large.segment import stream_segment
from inline_attention.large.sweep import Sweeps
from inline_attention.large.tensor_file import make_tensor_files

from ..dense.test_segmenter import randomised, segmenter

BACKBONES = {
    "pvt": ("inline_pvt_nano", {}),
    "swin": ("inline_swin_nano", {"inline_depths": (1, 1, 2, 1)}),
    "cswin": ("inline_cswin_nano", {"inline_depths": (1, 1, 2, 1), "patch_size": 4}),
    "windows": ("inline_swin_nano", {}),
    "deit": ("inline_deit_nano", {"patch_size": 8}),
}


def made(head, backbone="pvt", *, size=(64, 96), dtype=torch.float64, classes=5, width=16, **arguments):
    """With positions for the padded image, since timm resamples them in fp32."""
    torch.manual_seed(0)
    name, options = BACKBONES[backbone]
    padded = tuple(side + -side % 32 for side in size)
    model = segmenter(head, classes, name, width, img_size=padded, **{**options, **arguments})
    return randomised(model).to(dtype).eval()


def logits_of(streamed):
    return torch.cat([rows.logits for rows in streamed.logits()], 1)


def labels_of(streamed):
    return np.concatenate([rows.labels for rows in streamed.labels()])


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize(
    ("backbone", "size", "tokens"),
    [
        ("pvt", (45, 70), 1),
        ("pvt", (97, 33), 30),
        ("pvt", (33, 161), 10**6),
        ("swin", (70, 45), 40),
        ("cswin", (45, 70), 50),
        ("windows", (45, 70), 60),
        ("deit", (70, 45), 20),
    ],
)
def test_bands_give_what_the_whole_gives(head, backbone, size, tokens):
    model, image = made(head, backbone, size=size), torch.randn(1, 3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = model(image)[0]
    streamed = stream_segment(model, image, tokens=tokens)
    assert (streamed.height, streamed.width, streamed.classes) == (*size, 5)
    torch.testing.assert_close(logits_of(streamed), expected, rtol=1e-10, atol=1e-10)
    assert (labels_of(streamed) == expected.argmax(0).numpy()).all()


def test_floating_point_pixels_are_padded_too():
    """In bands of which some are padding alone."""
    pixels = np.random.default_rng(0).integers(0, 256, (33, 70, 3), dtype=np.uint8)
    model = made("semantic_fpn", size=(33, 70), dtype=torch.float32)
    whole, parts = (logits_of(stream_segment(model, each, tokens=1)) for each in (pixels, (pixels / 255).astype(np.float32)))
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_in_fp32_band_sizes_do_not_matter(head):
    size = (190, 130)
    model, image = made(head, size=size, dtype=torch.float32, classes=40, width=64), torch.randn(1, 3, *size)
    with torch.no_grad():
        expected = model(image)[0]
    for tokens in (70, 600):
        streamed = stream_segment(model, image, tokens=tokens)
        torch.testing.assert_close(logits_of(streamed), expected, rtol=0, atol=1e-5)
        assert (labels_of(streamed) == expected.argmax(0).numpy()).mean() >= 0.99999


@pytest.mark.parametrize("head", SEGMENTERS)
def test_each_row_of_a_map_is_computed_once_in_a_sweep_and_not_before_its_band(head, monkeypatch):
    """Bands of 3 rows of the finest map. No convolution sees more than that and some rows around them."""
    model, height, width = made(head), 160, 8
    most, computed, convolve = Counter(), Counter(), row_maps.convolve_rows

    def counted(convolution, rows):
        result = convolve(convolution, rows)
        most[convolution] = max(most[convolution], rows.shape[2])
        computed[convolution] += result.shape[2]
        return result

    monkeypatch.setattr(row_maps, "convolve_rows", counted)
    maps = [
        rows_of(torch.randn(1, channels, height >> level, width >> level, dtype=torch.float64))
        for level, channels in enumerate(model.backbone.channels)
    ]
    files = make_tensor_files(file_shapes(model, (height, width)), torch.float64, None)
    with torch.no_grad():
        coarse = kept(coarse_logit_rows(model, maps, Sweeps(3 * width, files, lambda: None)))
        for start in range(0, height, 3):
            assert coarse.read(max(0, start - 1), min(height, start + 4)).isfinite().all()
    rows = expected_rows(model, height)
    assert computed == {convolution: sweeps * count for convolution, (count, sweeps) in rows.items()}
    for convolution, (count, _) in rows.items():
        assert most[convolution] <= 3 * height // count + 8


def expected_rows(model, height):
    """Of the map that each convolution makes: its rows, and how many sweeps it is needed in."""
    decoder, rows = model.decoder, {model.head: (height, 1)}
    if isinstance(decoder, SemanticFpn):
        for level in range(4):  # the pyramid is needed in the sweeps of its own map's branch and of all finer ones
            rows[decoder.neck.inner_blocks[level][0]] = (height >> level, level + 1)
            rows[decoder.neck.layer_blocks[level][0]] = (height >> level, 1)
            convolutions = [layer for layer in decoder.branches[level] if isinstance(layer, nn.Conv2d)]
            rows |= {convolution: (height >> (level - place), 1) for place, convolution in enumerate(convolutions)}
        return rows
    rows |= {decoder.fusion_block[0]: (height, 1), decoder.psp.out_conv[0]: (height >> 3, 1)}
    for place in range(3):
        rows[decoder.fpn_lateral_blocks[place].conv_norm_relu[0]] = (height >> (2 - place), 1)
        rows[decoder.fpn_conv_blocks[place][0]] = (height >> (2 - place), 1)
    return rows


def test_a_kept_map_reads_rows_once_and_holds_a_band():
    source, seen = rows_of(torch.arange(100.0).view(1, 1, 100, 1)), []
    watched = source._replace(read=lambda start, stop: (seen.append((start, stop)), source.read(start, stop))[1])
    reader, keeper = kept(watched, above=2), row_maps._KeptRows(watched, above=2)
    for start in range(0, 100, 10):
        for first, last in ((max(0, start - 1), min(100, start + 11)), (max(0, start - 2), start + 10)):
            assert reader.read(first, last).flatten().tolist() == list(range(first, last))
    assert [row for start, stop in seen for row in range(start, stop)] == list(range(100))
    for start in range(0, 100, 10):
        keeper.read(start, start + 10)
        assert keeper.rows.shape[2] <= 12
    seen.clear()
    assert reader.read(0, 3).flatten().tolist() == [0, 1, 2], "a second sweep begins at the top"
    assert seen == [(0, 3)]


@pytest.mark.parametrize(("classes", "dtype", "ignored"), [(1, "uint8", 255), (255, "uint8", 255), (300, "uint16", 65_535)])
def test_labels_are_as_small_as_the_classes_allow(classes, dtype, ignored):
    model, image = made("upernet", classes=classes), torch.randn(3, 40, 64, dtype=torch.float64)
    nn.init.normal_(model.head.weight)
    nn.init.constant_(model.head.bias[256:], 3.0)
    streamed = stream_segment(model, image, tokens=64)
    labels = labels_of(streamed)
    with torch.no_grad():
        assert (labels == model(image[None])[0].argmax(0).numpy()).all()
    assert labels.dtype == streamed.dtype == dtype
    assert streamed.ignored == ignored
    assert classes < 256 or labels.max() > 255


def test_rows_come_once_from_the_top_down_and_progress_reaches_the_end(tmp_path):
    calls = []
    streamed = stream_segment(
        made("semantic_fpn", size=(50, 70)),
        torch.randn(3, 50, 70, dtype=torch.float64),
        tokens=100,
        folder=tmp_path,
        progress=lambda *now: calls.append(now),
    )
    assert list(tmp_path.iterdir()) == []
    before = len(calls)
    assert calls[-1][0] < calls[-1][1]
    bands = list(streamed.labels())
    assert [row for band in bands for row in range(band.start, band.stop)] == list(range(50))
    assert all(band.labels.shape == (band.stop - band.start, 70) for band in bands)
    assert len(calls) > before
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert {total for _, total in calls} == {len(calls)}
    again = np.concatenate([band.labels for band in streamed.labels()])
    assert (again == np.concatenate([band.labels for band in bands])).all()
    assert len(calls) == calls[-1][1]


def test_aligned_corners_of_the_branches():
    model, image = made("semantic_fpn"), torch.randn(1, 3, 64, 96, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, nn.Upsample):
            module.align_corners = True
    with torch.no_grad():
        expected = model(image)[0]
    torch.testing.assert_close(logits_of(stream_segment(model, image, tokens=50)), expected, rtol=1e-10, atol=1e-10)


def test_what_cannot_be_done_is_refused_in_one_line():
    image = torch.randn(3, 64, 64)
    with pytest.raises(ValueError, match=r"^stream_segment works in evaluation mode: call segmenter.eval\(\) first$"):
        stream_segment(segmenter("upernet"), image)
    with pytest.raises(ValueError, match=r"^one of this package's models is needed, such as inline_pvt_tiny, got ResNet$"):
        stream_segment(segmenter("upernet", backbone="resnet10t").eval(), image)


def dilated(model):
    model.decoder.fusion_block[0] = nn.Conv2d(64, 16, 3, padding=2, dilation=2)


def without_statistics(model):
    model.decoder.fusion_block[1] = nn.InstanceNorm2d(16)


def other_parts(model):
    del model.decoder.psp


def other_pooling(model):
    model.decoder.psp.blocks[1][0] = nn.AdaptiveMaxPool2d(2)


def other_branch(model):
    model.decoder.branches[1][1] = nn.BatchNorm2d(8)


def other_forward(model):
    model.decoder.register_forward_hook(lambda module, inputs, output: output + 1)


@pytest.mark.parametrize(
    ("head", "change", "message"),
    [
        ("upernet", dilated, "rows can be convolved with stride 1, dilation 1 and zeros around the map, got Conv2d(64, 16, "),
        (
            "upernet",
            without_statistics,
            "after a convolution, rows can go through BatchNorm2d with stored statistics and ReLU, ",
        ),
        ("upernet", other_parts, "UPerNetDecoder has not the parts that are known here: "),
        ("upernet", other_pooling, "UperNet's pyramid pooling is of adaptive averages over squares, got AdaptiveMaxPool2d"),
        ("upernet", other_forward, "UPerNetDecoder is not the decoder that is known here: in bands its logits differ by "),
        (
            "semantic_fpn",
            other_branch,
            "a branch of SemanticFPN has convolution, GroupNorm, ReLU and upsampling, got Sequential",
        ),
        ("semantic_fpn", other_forward, "SemanticFpn is not the decoder that is known here: in bands its logits differ by "),
    ],
)
def test_another_decoder_is_refused_before_any_work(head, change, message):
    model = made(head)
    check_decoder(model, None)
    change(model)
    model.double().eval()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_decoder(model, None)


def mask_of(height, width):
    """A background to the right and below, and a few invalid pixels inside."""
    mask = torch.ones(height, width, dtype=torch.bool)
    mask[40:] = False
    mask[:, width - 8 :] = False
    mask[5:9, 3:20] = False
    return mask


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("backbone", ["pvt", "windows", "deit"])
def test_masked_pixels_have_no_influence_and_no_label(head, backbone):
    size = (90, 70)
    model, image, mask = made(head, backbone, size=size), torch.randn(1, 3, *size, dtype=torch.float64), mask_of(*size)
    with torch.no_grad():
        expected = model(image, mask[None])[0]
    image[..., ~mask] = torch.nan
    streamed = stream_segment(model, image, mask=mask, tokens=50)
    torch.testing.assert_close(logits_of(streamed), expected, rtol=1e-10, atol=1e-10)
    labels = torch.from_numpy(labels_of(streamed)).long()
    assert (labels[~mask] == 255).all()
    assert (labels[mask] == expected.argmax(0)[mask]).all()
    probabilities = torch.from_numpy(np.concatenate([rows.probabilities for rows in streamed.probabilities()]))
    assert probabilities[~mask].isnan().all()
    torch.testing.assert_close(probabilities[mask], expected.softmax(0)[:, mask].T.float())


def test_a_mask_that_is_true_everywhere_changes_nothing():
    model, image = made("upernet"), torch.randn(1, 3, 45, 70, dtype=torch.float64)
    mask = torch.ones(1, 45, 70, dtype=torch.bool)
    with torch.no_grad():
        expected = model(image)
        torch.testing.assert_close(model(image, mask), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(logits_of(stream_segment(model, image, mask=mask[0])), expected[0], rtol=1e-9, atol=1e-9)


def test_bands_without_a_valid_pixel_are_not_computed(monkeypatch):
    model, mask = made("upernet", size=(320, 32)), torch.zeros(320, 32, dtype=torch.bool)
    mask[96:128] = True
    streamed = stream_segment(model, torch.randn(3, 320, 32, dtype=torch.float64), mask=mask, tokens=24)
    computed, convolve = Counter(), row_maps.convolve_rows
    monkeypatch.setattr(
        row_maps, "convolve_rows", lambda conv, rows: (computed.update({conv: rows.shape[2]}), convolve(conv, rows))[1]
    )
    assert (labels_of(streamed) == 255).all(1).sum() == 320 - 32
    assert computed[model.head] < 20, "of 80 rows, 8 and their neighbours"
