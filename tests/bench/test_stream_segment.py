"""The bench of streamed segmentation: its files, its tiles, and a small run."""

import numpy as np
import pytest
import tifffile
import torch

from inline_attention.bench import stream_segment
from inline_attention.bench.scene import write_scene, write_slide
from inline_attention.bench.stream_segment import StreamSegmentCase, draw, measure_stream_segment, rows, sentences
from inline_attention.bench.tiles import tile_corners, tiled_labels
from inline_attention.large.open_file import open_image_file


def test_the_slide_is_a_pyramid_of_the_scene(tmp_path):
    pixels = write_scene(tmp_path / "image.npy", 1300)
    path = write_slide(tmp_path / "image.tif", pixels)
    file = open_image_file(path)
    assert [(level.height, level.width) for level in file.levels] == [(1300, 1300), (650, 650)]
    assert file.pixel_size.height == pytest.approx(0.5)
    file.close()
    with tifffile.TiffFile(path) as opened:
        assert opened.pages[0].compression.name == "JPEG"
        assert np.abs(opened.pages[0].asarray().astype(int) - pixels).mean() < 8


@pytest.mark.parametrize(("size", "shift"), [(100, 0), (100, 13), (64, 0), (20, 5)])
def test_every_pixel_has_the_label_of_one_tile(size, shift):
    """A segmenter that says what it sees: the labels are the image, whatever the tiles."""
    pixels = np.random.default_rng(0).integers(0, 2, (size, size, 3), dtype=np.uint8) * 255

    class Sees(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images):
            return torch.stack([1 - images[:, 0], images[:, 0]], 1)

    found = tiled_labels(Sees(), pixels, 32, 0.25, shift)
    assert (found == pixels[:, :, 0] // 255).all()
    assert all(0 <= start <= max(0, size - 32) for corner in tile_corners(size, 32, 0.25, shift) for start in corner)


def test_a_small_bench_and_its_report(monkeypatch):
    """Of the four tiles two are timed, once; the two heights of bands differ."""
    monkeypatch.setattr(stream_segment, "MOST_TILES", 2)
    monkeypatch.setattr(stream_segment, "BANDS", (200, 48))
    case = StreamSegmentCase("inline_pvt_nano", "semantic_fpn", 96, tile=64, seam_side=96, width=16)
    record = {**vars(case), **measure_stream_segment(case, 0.1, torch.device("cpu"))}
    assert record["seams"]["bands"] == 0
    assert (record["tiles"], record["tiles_timed"], record["once"]["tiles"]["rounds"]) == (4, 2, 1)
    assert len(rows([record])) == 3
    assert len(sentences([record])) == 1
    assert draw([record]).axes
