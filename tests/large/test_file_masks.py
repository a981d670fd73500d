"""Masks of files: tissue by its colour, pixels without data, other files. What holds nothing is not read."""

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from timm.models import create_model

from inline_attention import open_large_image, stream
from inline_attention.large.file_masks import StretchedMask, otsu, tissue_mask
from inline_attention.large.large_image import LargeImage

from .test_large_image import Counted

RNG = np.random.default_rng(0)


def brute_force_otsu(values):
    """The threshold with the least variance within the two kinds."""

    def within(threshold):
        return sum(part.size * part.var() for part in (values[values <= threshold], values[values > threshold]) if part.size)

    return min(range(256), key=within)


@pytest.mark.parametrize("seed", range(5))
def test_otsus_threshold(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(60, 20, 300), rng.normal(150, 30, 200)]).clip(0, 255).astype(np.uint8)
    ours, expected = otsu(values), brute_force_otsu(values)
    np.testing.assert_array_equal(values > ours, values > expected)


def test_an_image_of_one_colour_has_no_tissue():
    values = np.full((4, 4), 7, np.uint8)
    assert not (values > otsu(values)).any()


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    """Two purple islands on the grey of glass, of 384 x 256 pixels, in two levels."""
    path = tmp_path_factory.mktemp("slide") / "a.tif"
    pixels = RNG.integers(225, 240, (384, 256, 1), dtype=np.uint8).repeat(3, 2)
    tissue = np.zeros((384, 256), bool)
    tissue[64:128, 32:160] = tissue[320:352, 96:224] = True
    pixels[tissue] = np.array([150, 60, 140]) + RNG.integers(-20, 20, (tissue.sum(), 3))
    with tifffile.TiffWriter(path) as writer:
        writer.write(pixels, tile=(32, 32), subifds=1, resolution=(20000, 20000), resolutionunit=3)
        writer.write(pixels[::2, ::2], tile=(32, 32), subfiletype=1)
    return path, pixels, tissue


def test_tissue_is_found_on_a_thumbnail(slide, monkeypatch):
    path, _, tissue = slide
    monkeypatch.setattr("inline_attention.large.file_masks.TISSUE_SIDE", 96)
    found = tissue_mask(path)
    assert found.shape == (96, 64)
    whole = tissue.reshape(96, 4, 64, 4).all((1, 3))
    assert found[whole].mean() > 0.99
    wide = np.kron(found, np.ones((4, 4), bool))
    near = np.asarray(Image.fromarray(tissue).convert("L").resize((256, 384))) > 0
    assert wide.sum() < 1.5 * near.sum()


def test_tissue_gives_what_the_plain_model_gives_with_that_mask(slide):
    """And nothing but its rows is read."""
    path, pixels, _ = slide
    torch.manual_seed(0)
    model = create_model("inline_pvt_nano", num_classes=5).eval()
    image = open_large_image(path, mask="tissue")
    mask = torch.cat([image.has_data(start, start + 32) for start in range(0, 384, 32)])
    assert 0.1 < mask.float().mean() < 0.3
    expected = stream(model, pixels, mask=mask, tokens=300).logits
    assert torch.equal(stream(model, image, tokens=300).logits, expected)
    assert not torch.allclose(stream(model, path, tokens=300).logits, expected, atol=1e-3)


def test_masked_rows_are_not_decoded(monkeypatch):
    """But those in a band with others, of 12 rows here, in blocks of 16."""
    monkeypatch.setattr("inline_attention.large.row_blocks.LEAST_BYTES", 1)
    pixels = RNG.integers(0, 256, (192, 64, 3), dtype=np.uint8)
    file, small = Counted(pixels), np.zeros((12, 4), bool)
    small[5:7] = True
    mask = StretchedMask(lambda start, stop: small[start:stop], (12, 4), (192, 64), in_memory=True)
    model = create_model("inline_deit_nano", num_classes=5).eval()
    found = stream(model, LargeImage(file, mask=mask), tokens=200).logits
    assert np.flatnonzero(file.reads).tolist() == list(range(4 * 16, 8 * 16))
    assert file.reads.max() == 1
    expected = stream(model, pixels, mask=np.kron(small, np.ones((16, 16), bool)), tokens=200).logits
    assert torch.equal(found, expected)


@pytest.mark.parametrize("size", [(384, 256), (96, 64), (25, 17), (768, 512)])
def test_a_file_is_a_mask_whatever_its_size(slide, size, tmp_path):
    """Each pixel has the value of the nearest pixel of the mask."""
    path, _, _ = slide
    values = RNG.random(size) > 0.4
    tifffile.imwrite(tmp_path / "mask.tif", values.astype(np.uint8) * 3, tile=(16, 16), compression="zlib")
    image = open_large_image(path, mask=tmp_path / "mask.tif")
    found = torch.cat([image.has_data(start, min(384, start + 50)) for start in range(0, 384, 50)])
    rows, columns = ((np.arange(new) + 0.5) * old / new for old, new in zip(size, (384, 256), strict=True))
    np.testing.assert_array_equal(found, values[rows.astype(int)][:, columns.astype(int)])
    assert image.read(0, 5)[~found[:5]].abs().max() == 0
    image.close()


def test_transparent_pixels_are_no_data_where_asked(tmp_path):
    clear = RNG.integers(0, 256, (40, 30, 4), dtype=np.uint8)
    clear[:20, 5:, 3] = 0
    Image.fromarray(clear, "RGBA").save(tmp_path / "a.png")
    assert not open_large_image(tmp_path / "a.png").may_lack_data
    found = open_large_image(tmp_path / "a.png", mask="nodata").has_data(0, 40)
    np.testing.assert_array_equal(found, clear[:, :, 3] > 0)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        ("nodata", "it has no mask of its own: neither a value that stands for no data, nor transparent pixels"),
        ("tisue", "there is no mask tisue: it is tissue, nodata, none or an image file"),
        ("wide.png", "the mask, 50 x 90, has not the shape of the image, 384 x 256"),
        ("broken.png", r"cannot read the image .*broken\.png"),
        ("grey.tif", "tissue is found by its colour, and the image has no red, green and blue: 0"),
    ],
)
def test_wrong_masks_are_one_line(slide, mask, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("L", (90, 50)).save("wide.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    tifffile.imwrite("grey.tif", np.zeros((40, 30), np.uint8))
    path, mask = ("grey.tif", "tissue") if mask == "grey.tif" else (slide[0], mask)
    with pytest.raises(ValueError, match=said) as error:
        open_large_image(path, mask=mask)
    assert "\n" not in str(error.value)


def test_a_mask_without_a_pixel_is_one_line(slide, tmp_path):
    Image.new("L", (64, 96)).save(tmp_path / "empty.png")
    model = create_model("inline_deit_nano", num_classes=5).eval()
    with pytest.raises(ValueError, match="the mask has no valid pixel: there is nothing to look at"):
        stream(model, open_large_image(slide[0], mask=tmp_path / "empty.png"))
