"""Rows of a resized map, against torch's resizing of the whole map."""

import pytest
import torch
import torch.nn.functional as F

from inline_attention.large.resize_rows import Resize, resized, row_weights
from inline_attention.large.row_maps import rows_of

WAYS = [
    pytest.param((7, 5), (14, 10), Resize("nearest"), id="nearest"),
    pytest.param((7, 5), (14, 10), Resize(), id="twice"),
    pytest.param((7, 5), (28, 20), Resize(), id="four times"),
    pytest.param((6, 6), (37, 41), Resize(align_corners=False), id="from six bins"),
    pytest.param((1, 1), (9, 8), Resize(), id="from one"),
    pytest.param((7, 5), (14, 10), Resize(align_corners=True), id="aligned corners"),
    pytest.param((10, 9), (35, 32), Resize(), id="14 to 4"),
    pytest.param((6, 6), (2, 3), Resize(), id="shrunk"),
    pytest.param((24, 20), (12, 10), Resize(antialias=True), id="half"),
    pytest.param((40, 24), (5, 3), Resize(antialias=True), id="an eighth"),
    pytest.param((23, 10), (11, 5), Resize(antialias=True), id="14 to 32"),
]


@pytest.mark.parametrize(("old", "new", "how"), WAYS)
@pytest.mark.parametrize("band", [1, 3, 100])
def test_rows_are_those_of_the_whole_map(old, new, how, band):
    source = torch.randn(1, 3, *old, dtype=torch.float64)
    expected = F.interpolate(source, new, mode=how.mode, align_corners=how.align_corners, antialias=how.antialias)
    reader = resized(rows_of(source), new, how, source.dtype)
    rows = [reader.read(start, min(start + band, new[0])) for start in range(0, new[0], band)]
    torch.testing.assert_close(torch.cat(rows, 2), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("old", "new"), [(7000, 24_500), (3001, 12_010), (9001, 3600)])
def test_far_down_positions_are_rounded_as_by_torch(old, new):
    """In fp32 a position after thousands of rows is off by more than 1e-5; in rows and in the whole map by the same."""
    how = Resize(antialias=new < old)
    source = torch.randn(1, 1, old, 2)
    expected = F.interpolate(source, (new, 2), mode="bilinear", antialias=how.antialias)
    reader = resized(rows_of(source), (new, 2), how, source.dtype)
    torch.testing.assert_close(reader.read(new - 900, new), expected[:, :, -900:], rtol=0, atol=2e-6)


def test_few_rows_of_the_source_are_read():
    source, seen = rows_of(torch.randn(1, 2, 50, 4)), []
    watched = source._replace(read=lambda start, stop: (seen.append((start, stop)), source.read(start, stop))[1])
    resized(watched, (200, 16), Resize(), torch.float32).read(80, 120)
    assert seen == [(19, 31)]


def test_weights_of_a_row_add_up_to_one():
    for how in (Resize(), Resize("nearest"), Resize(align_corners=True)):
        assert row_weights(3, 40, 20, 60, how, torch.float64)[1].sum(1).sub(1).abs().max() < 1e-12
    assert row_weights(0, 7, 60, 20, Resize(antialias=True), torch.float64)[1].sum(1).sub(1).abs().max() < 1e-12
