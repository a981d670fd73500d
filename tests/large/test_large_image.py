"""An image file at a chosen resolution, with chosen channels and values, in bands of any height."""

import time

import numpy as np
import pytest
import tifffile
import torch
import torch.nn.functional as F

from inline_attention.large.area_average import average_rows, covered
from inline_attention.large.file_masks import StretchedMask
from inline_attention.large.image_file import COLOURS, Level, PixelSize
from inline_attention.large.large_image import LargeImage
from inline_attention.large.numpy_file import ArrayFile
from inline_attention.large.open_large_image import open_large_image
from inline_attention.large.thumbnail import thumbnail

RNG = np.random.default_rng(0)


def whole(image, band=7):
    """All rows, read in bands."""
    bands = [(start, min(start + band, image.height)) for start in range(0, image.height, band)]
    return torch.cat([image.read(*each) for each in bands])


def test_the_average_is_that_of_torch_where_both_are_exact():
    """Whole factors: adaptive average pooling. Others: the mean of an enlarged image, each pixel cut into equal parts."""
    image = torch.rand(36, 50, 2, dtype=torch.float64)
    ours = average_rows(image, 0, 9, (36, 50), (9, 25))
    torch.testing.assert_close(ours, F.adaptive_avg_pool2d(image.permute(2, 0, 1), (9, 25)).permute(1, 2, 0))
    enlarged = image.repeat_interleave(7, 0).repeat_interleave(11, 1)  # of 252 x 550, for 7 x 11 pixels from 36 x 50
    expected = F.adaptive_avg_pool2d(enlarged.permute(2, 0, 1), (7, 11)).permute(1, 2, 0)
    torch.testing.assert_close(average_rows(image, 0, 7, (36, 50), (7, 11)), expected)
    first, last = covered(3, 5, 36, 7)
    torch.testing.assert_close(average_rows(image[first:last], 3, 5, (36, 50), (7, 11)), expected[3:5])


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    """A pyramid of three levels, 0.5 micrometres per pixel, with numbers of its own in each level."""
    path = tmp_path_factory.mktemp("slide") / "a.tif"
    levels = [RNG.integers(0, 256, (240 >> n, 322 >> n, 3), dtype=np.uint8) for n in range(3)]
    with tifffile.TiffWriter(path) as writer:
        writer.write(levels[0], tile=(64, 64), subifds=2, resolution=(20000, 20000), resolutionunit=3)
        for level in levels[1:]:
            writer.write(level, tile=(32, 32), subfiletype=1)
    return path, levels


@pytest.mark.parametrize(
    ("mpp", "level", "size"),
    [
        (0.5, 0, (240, 322)),
        (0.502, 0, (240, 322)),
        (0.75, 0, (160, 215)),
        (1.0, 1, (120, 161)),
        (2.2, 2, (55, 73)),
        (40, 2, (3, 4)),
    ],
)
def test_the_nearest_finer_level_is_averaged_to_the_resolution(slide, mpp, level, size):
    path, levels = slide
    image = open_large_image(path, mpp=mpp)
    assert (image.level, image.height, image.width) == (level, *size)
    assert image.pixel_size.height == pytest.approx(0.5 * 240 / size[0])
    assert image.pixel_size.width == pytest.approx(0.5 * 322 / size[1])
    exact = torch.from_numpy(levels[level] / 255)
    expected = average_rows(exact, 0, size[0], exact.shape[:2], size) if mpp not in (0.5, 0.502, 1.0) else exact
    for band in (1, 7, 1000):
        torch.testing.assert_close(whole(image, band), expected.float(), rtol=1e-5, atol=1e-6)


def test_a_level_is_read_as_it_is(slide):
    path, levels = slide
    np.testing.assert_array_equal((whole(open_large_image(path, level=1)) * 255).round().numpy(), levels[1])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": 3}, r"there is no level 3: it has 0 \(240 x 322\), 1 \(120 x 161\), 2 \(60 x 80\)"),
        ({"level": -1}, "there is no level -1"),
        ({"level": 1, "mpp": 2.0}, "level 1 and mpp 2 are two ways to choose a resolution: give one of them"),
        ({"mpp": 0.25}, "mpp 0.25 is finer than the image, whose pixels are 0.5 x 0.5 µm: it would have to be enlarged"),
        ({"mpp": 1000.0}, "mpp 1000 is coarser than the whole image, 240 x 322 pixels"),
        ({"mpp": 0.0}, "mpp must be positive, got 0"),
        ({"mpp": float("nan")}, "mpp must be positive, got nan"),
        ({"channels": ["3"]}, r"there is no channel 3: it has 0 \(red\), 1 \(green\), 2 \(blue\)"),
        ({"value_range": (5, 5)}, "value_range must be two numbers, the lower one first, got 5 and 5"),
    ],
)
def test_wrong_choices_are_one_line(slide, options, said):
    with pytest.raises(ValueError, match=said):
        open_large_image(slide[0], **options)


def test_a_file_without_a_pixel_size_has_no_mpp():
    with pytest.raises(ValueError, match="it does not say how large its pixels are, so mpp 2 cannot be reached"):
        LargeImage(ArrayFile(np.zeros((9, 9, 3), np.uint8)), mpp=2.0)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.uint32, np.int32, np.float32, np.float64])
def test_a_stated_range_becomes_black_and_white(dtype):
    """Values outside are clipped."""
    values = np.array([[0, 100, 150, 300, 1000]], dtype)
    image = LargeImage(ArrayFile(values), value_range=(100, 300))
    torch.testing.assert_close(image.read(0, 1)[0, :, 0], torch.tensor([0, 0, 0.25, 1, 1]))


@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64])
def test_numbers_without_a_usual_range_need_one(dtype):
    with pytest.raises(ValueError, match=f"its pixels are {np.dtype(dtype)}: give the values that become black and white"):
        LargeImage(ArrayFile(np.zeros((4, 4), dtype)))


@pytest.mark.parametrize("channels", [["2", "0"], [2, 0], ["Blue", "red"]])
def test_channels_by_number_or_name(channels):
    pixels = RNG.integers(0, 256, (6, 5, 3), dtype=np.uint8)
    image = LargeImage(ArrayFile(pixels), channels=channels)
    assert image.names == ("blue", "red")
    np.testing.assert_allclose(image.read(1, 4).numpy() * 255, pixels[1:4, :, [2, 0]], atol=1e-4)


class WithNodata(ArrayFile):
    """An array of which one value is no data, and whose pixels have a size."""

    def __init__(self, array, nodata):
        super().__init__(array)
        self.nodata = nodata
        self.pixel_size = PixelSize(10, 10, "m")


@pytest.mark.parametrize(("dtype", "nodata"), [(np.uint8, 0), (np.float32, np.nan), (np.float32, -9999.0)])
def test_pixels_without_data_are_left_out_of_the_average(dtype, nodata):
    pixels = RNG.integers(1, 256, (8, 8, 3)).astype(dtype)
    pixels[:3] = pixels[4:6, 5] = nodata
    image = LargeImage(WithNodata(pixels, nodata), value_range=(0, 255), mpp=20)
    holds = (np.arange(8)[:, None] >= 3) & ~((np.arange(8)[:, None] // 2 == 2) & (np.arange(8) == 5))
    counts = holds.reshape(4, 2, 4, 2).sum((1, 3))
    sums = np.where(holds[:, :, None], pixels, 0).astype(np.float64).reshape(4, 2, 4, 2, 3).sum((1, 3))
    np.testing.assert_array_equal(torch.cat([image.has_data(n, n + 1) for n in range(4)]).numpy(), counts > 0)
    np.testing.assert_allclose(whole(image, 1).numpy() * 255, sums / np.maximum(counts, 1)[:, :, None], rtol=1e-5, atol=1e-4)


def test_pixels_without_data_do_not_darken_a_thumbnail():
    """A dim scene of 16 bits uses all greys, however much of the image holds no data."""
    pixels = RNG.integers(1000, 3001, (64, 64, 1)).astype(np.uint16)
    pixels[:32] = 0
    small = np.asarray(thumbnail(LargeImage(WithNodata(pixels, 0)), (64, 64)))
    assert (small[:32] == 255).all()
    low, high = np.quantile(pixels[32:], [0.02, 0.98])
    expected = 255 * ((pixels[32:] - low) / (high - low)).clip(0, 1)
    np.testing.assert_allclose(small[32:], expected.repeat(3, 2), atol=1)
    assert (np.asarray(thumbnail(LargeImage(WithNodata(0 * pixels, 0)), (16, 16))) == 255).all()


def test_a_value_that_no_pixel_can_have_is_no_mask():
    image = LargeImage(WithNodata(np.full((2, 2, 3), 241, np.uint8), -9999.0))  # 241 is -9999 modulo 256
    assert image.has_data(0, 2).all()


@pytest.mark.parametrize("kind", ["unassalpha", "assocalpha"])
def test_transparent_pixels_are_laid_on_white(kind, tmp_path):
    clear = RNG.integers(0, 256, (20, 30, 4), dtype=np.uint8)
    clear[:, :, :3] = np.minimum(clear[:, :, :3], clear[:, :, 3:])
    tifffile.imwrite(tmp_path / "a.tif", clear, photometric="rgb", extrasamples=[kind])
    colour, alpha = clear[:, :, :3] / 255, clear[:, :, 3:] / 255
    expected = colour * (alpha if kind == "unassalpha" else 1) + 1 - alpha
    image = open_large_image(tmp_path / "a.tif")
    assert image.names == COLOURS
    np.testing.assert_allclose(whole(image).numpy(), expected, atol=1e-6)
    assert not image.may_lack_data


class Counted(ArrayFile):
    """An array in blocks of 16 rows, which counts how often each row is read."""

    def __init__(self, array):
        super().__init__(array)
        self.levels = (Level(*array.shape[:2], 1.0, 16),)
        self.reads = np.zeros(array.shape[0], int)
        self.closed = False

    def read(self, level, start, stop, channels=None):
        self.reads[start:stop] += 1
        return super().read(level, start, stop, channels)

    def close(self):
        self.closed = True


def test_a_file_that_its_own_thread_frees_is_closed():
    """As the garbage collector may do, while rows are decoded."""
    file = Counted(RNG.integers(0, 256, (150, 20, 3), dtype=np.uint8))
    image = LargeImage(file)
    read = file.read
    file.read = lambda *where: (image.close(), read(*where))[1]
    np.testing.assert_allclose(image.read(3, 5).numpy() * 255, file.array[3:5], atol=1e-4)
    for _ in range(200):
        if file.closed:
            break
        time.sleep(0.05)
    assert file.closed


def test_every_block_is_decoded_once(monkeypatch):
    """By bands that overlap, ahead of them, and no further ahead than the memory allows."""
    monkeypatch.setattr("inline_attention.large.row_blocks.LEAST_BYTES", 1)
    monkeypatch.setattr("inline_attention.large.row_blocks.AHEAD_BYTES", 33 * 20 * 3)
    file = Counted(RNG.integers(0, 256, (150, 20, 3), dtype=np.uint8))
    image = LargeImage(file)
    for start in range(0, 150, 11):
        rows = image.read(max(0, start - 2), min(150, start + 13))
        np.testing.assert_allclose(rows.numpy() * 255, file.array[max(0, start - 2) : start + 13], atol=1e-4)
        assert not file.reads[start + 13 + 3 * 16 :].any()
    assert (file.reads == 1).all()
    image.close()
    assert file.closed


@pytest.mark.parametrize("mpp", [None, 20])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_rows_below_the_last_are_none(dtype, mpp):
    """Padding asks for them; the height is that of whole blocks."""
    file = WithNodata(np.ones((32, 40, 3), dtype), 0)
    file.levels = (Level(32, 40, 1.0, 16),)
    mask = StretchedMask(lambda start, stop: np.ones((stop - start, 5), bool), (4, 5), (32, 40))
    image = LargeImage(file, mask=mask if mpp is None else None, mpp=mpp)
    assert image.read(image.height, image.height).shape == (0, image.width, 3)
    assert image.has_data(image.height, image.height).shape == (0, image.width)
