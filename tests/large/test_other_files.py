"""Maps, slides, Zarr and plain images, written by other libraries, are read row by row as they were written."""

import json
import pickle

import numpy as np
import pytest
import rasterio
import tifffile
import torch
import zarr
from PIL import Image
from rasterio.transform import Affine
from timm.models import create_model

from inline_attention import stream
from inline_attention.large.image_file import PixelSize
from inline_attention.large.image_reader import open_image
from inline_attention.large.open_file import open_image_file
from inline_attention.large.open_large_image import open_large_image
from inline_attention.large.slide_file import SlideFile, open_slide

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (150, 131, 3), dtype=np.uint8)
UTM = {"crs": "EPSG:32633", "transform": Affine(10, 0, 500000, 0, -10, 5000000)}


def write_map(path, pixels, driver="GTiff", levels=(), mask=None, **options):
    height, width, count = pixels.shape
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        with rasterio.open(
            path, "w", driver=driver, height=height, width=width, count=count, dtype=pixels.dtype, **{**UTM, **options}
        ) as file:
            file.write(np.moveaxis(pixels, 2, 0))
            if mask is not None:
                file.write_mask(mask)
        if levels:
            with rasterio.open(path, "r+") as file:
                file.build_overviews(levels)


def check_rows(path, pixels):
    file = open_image_file(path)
    height, width, count = pixels.shape
    assert (file.levels[0].height, file.levels[0].width) == (height, width)
    np.testing.assert_array_equal(file.read(0, 0, height, range(count)), pixels)
    np.testing.assert_array_equal(file.read(0, 37, 101)[:, :, :count], pixels[37:101])
    np.testing.assert_array_equal(file.read(0, 37, 38, [count - 1, 0]), pixels[37:38, :, [count - 1, 0]])
    return file


MAPS = {
    "tiles": {"tiled": True, "blockxsize": 64, "blockysize": 64, "compress": "deflate"},
    "strips": {"compress": "lzw"},
    "cog": {"driver": "COG", "compress": "deflate", "blocksize": 128},
    "jp2": {"driver": "JP2OpenJPEG", "quality": "100", "reversible": "yes"},
}


@pytest.mark.parametrize("kind", MAPS)
def test_maps_are_read_exactly(kind, tmp_path):
    write_map(tmp_path / "a", COLOUR, **MAPS[kind])
    file = check_rows(tmp_path / "a", COLOUR)
    assert file.pixel_size == PixelSize(10, 10, "m")
    assert file.georeference.transform == (10, 0, 500000, 0, -10, 5000000)
    assert "UTM zone 33N" in file.georeference.crs
    file.close()


def test_overviews_are_levels_and_metres_choose_them(tmp_path):
    """Of a COG: the level, the size and the place on the earth."""
    write_map(tmp_path / "a.tif", COLOUR, tiled=True, blockxsize=64, blockysize=64, levels=[2, 4])
    with rasterio.open(tmp_path / "a.tif", OVERVIEW_LEVEL=0) as overview:
        half = np.moveaxis(overview.read(), 0, 2)
    image = open_large_image(tmp_path / "a.tif", mpp=20)
    assert (image.level, image.height, image.width) == (1, 75, 66)
    np.testing.assert_allclose(image.read(3, 70).numpy() * 255, half[3:70], atol=1e-4)
    image = open_large_image(tmp_path / "a.tif", mpp=25)
    assert (image.level, image.height, image.width) == (1, 60, 52)
    assert image.pixel_size == PixelSize(25.0, 10 * 131 / 52, "m")
    assert image.georeference.transform == (10 * 131 / 52, 0, 500000, 0, -25, 5000000)
    image.close()


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_nodata_of_a_map(dtype, tmp_path):
    nodata = {np.uint8: 0, np.int16: -32768, np.float32: np.nan}[dtype]
    pixels = np.maximum(COLOUR, 1).astype(dtype)
    pixels[:40, 20:] = nodata
    write_map(tmp_path / "a.tif", pixels, nodata=nodata)
    image = open_large_image(tmp_path / "a.tif", value_range=(0, 255))
    data = image.has_data(0, 150)
    assert not data[:40, 20:].any()
    assert data[40:].all()
    assert data[:, :20].all()
    np.testing.assert_allclose(image.read(0, 150).numpy() * 255, np.nan_to_num(np.maximum(pixels, 0)), atol=1e-4)


def test_an_inner_mask_is_transparent(tmp_path):
    """And what is transparent on a map is no data."""
    mask = RNG.random((150, 131)) > 0.5
    write_map(tmp_path / "a.tif", COLOUR, mask=mask)
    image = open_large_image(tmp_path / "a.tif")
    assert image.names == ("red", "green", "blue")
    np.testing.assert_array_equal(image.has_data(3, 50), mask[3:50])
    np.testing.assert_allclose(image.read(3, 50).numpy() * 255, np.where(mask[3:50, :, None], COLOUR[3:50], 0), atol=1e-4)
    assert open_image_file(tmp_path / "a.tif").read(0, 3, 4, [3, 0])[0, :, 0].tolist() == (mask[3] * 255).tolist()


def test_a_palette_gives_its_colours(tmp_path):
    colours = RNG.integers(0, 256, (256, 3), dtype=np.uint8)
    numbers = COLOUR[:, :, :1]
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", height=150, width=131, count=1, dtype=np.uint8, **UTM) as file:
        file.write(numbers[:, :, 0], 1)
        file.write_colormap(1, {n: (*map(int, colour), 255) for n, colour in enumerate(colours)})
    check_rows(tmp_path / "a.tif", colours[numbers[:, :, 0]])


def test_a_map_in_degrees_has_no_metres(tmp_path):
    write_map(tmp_path / "a.tif", COLOUR, crs="EPSG:4326", transform=Affine(0.001, 0, 13, 0, -0.001, 52))
    with pytest.raises(ValueError, match="it does not say how large its pixels are, so mpp 20 cannot be reached"):
        open_large_image(tmp_path / "a.tif", mpp=20)


@pytest.mark.parametrize("how", ["truncated", "jp2", "claims"])
def test_broken_maps_are_one_line(how, tmp_path):
    write_map(tmp_path / "a", COLOUR, **MAPS["jp2" if how == "jp2" else "tiles"])
    content = (tmp_path / "a").read_bytes()
    if how == "claims":  # a height of 150 becomes one of 60,000
        content = content.replace(b"\x01\x01\x03\x00\x01\x00\x00\x00\x96\x00", b"\x01\x01\x03\x00\x01\x00\x00\x00\x60\xea", 1)
    (tmp_path / "a").write_bytes(content if how == "claims" else content[: len(content) // 2])
    with pytest.raises(ValueError, match=f"cannot read the image {tmp_path / 'a'}: .") as error:
        open_large_image(tmp_path / "a").read(0, 150)
    assert "\n" not in str(error.value)


def write_slide(path, levels, description):
    with tifffile.TiffWriter(path) as writer:
        for number, level in enumerate(levels):
            writer.write(
                level,
                tile=(64, 64),
                description=description if number == 0 else None,
                metadata=None,
                **({"subfiletype": 1} if number else {}),
                photometric="rgb",
                compression="zlib" if description is None else "jpeg",
                compressionargs=None if description is None else {"level": 100},
            )


def test_slides_are_read_by_openslide(tmp_path):
    """Written by tifffile: plain TIFF, so without loss, all levels, and rows from within a tile."""
    levels = [RNG.integers(0, 256, (256 >> n, 320 >> n, 3), dtype=np.uint8) for n in range(3)]
    write_slide(tmp_path / "a.tif", levels, None)
    slide = open_slide(tmp_path / "a.tif")
    assert [(each.height, each.width, each.downsample) for each in slide.levels] == [(256, 320, 1), (128, 160, 2), (64, 80, 4)]
    for number, level in enumerate(levels):
        rows = slide.read(number, 21, 64)
        np.testing.assert_array_equal(rows[:, :, :3], level[21:64])
        assert (rows[:, :, 3] == 255).all()
        np.testing.assert_array_equal(slide.read(number, 5, 6, [2, 0]), level[5:6, :, [2, 0]])
    slide.close()


def test_a_slide_of_a_vendor_is_known_by_its_content(tmp_path):
    """An SVS with another ending, with its pixel size; the JPEG in it is what tifffile decodes, but for rounding."""
    base = np.kron(RNG.integers(0, 256, (20, 20, 3)), np.ones((10, 10, 1))).astype(np.uint8)
    write_slide(tmp_path / "a.dat", [base], "Aperio Image Library v11.2.1\n200x200 |AppMag = 20|MPP = 0.4990")
    file = open_image_file(tmp_path / "a.dat")
    assert isinstance(file, SlideFile)
    assert file.pixel_size == PixelSize(0.499, 0.499, "µm")
    file.close()
    image = open_large_image(tmp_path / "a.dat", mpp=0.998)
    assert (image.height, image.width, image.names) == (100, 100, ("red", "green", "blue"))
    decoded = tifffile.imread(tmp_path / "a.dat").reshape(100, 2, 100, 2, 3).mean((1, 3))
    assert np.abs(image.read(0, 100).numpy() * 255 - decoded).max() <= 2
    image.close()


ZARRS = {
    "plain 3": {"zarr_format": 3, "chunks": (64, 64, 3)},
    "plain 2": {"zarr_format": 2, "chunks": (50, 131, 1)},
    "shards": {"zarr_format": 3, "chunks": (16, 16, 3), "shards": (64, 64, 3)},
}


@pytest.mark.parametrize("kind", ZARRS)
def test_zarr_arrays_are_read_exactly(kind, tmp_path):
    zarr.create_array(str(tmp_path / "a"), data=COLOUR, **ZARRS[kind])
    file = check_rows(tmp_path / "a", COLOUR)
    assert file.levels[0].rows_at_once == {"plain 2": 50}.get(kind, 64)


def ome_zarr(path, zarr_format, levels):
    """(C, Y, X) with a pixel of 0.5 x 0.25 micrometres, as the specification 0.4 and 0.5 have it."""
    group = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    scales = {
        "axes": [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}]
        + [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"],
        "datasets": [],
    }
    for number, level in enumerate(levels):
        data = np.moveaxis(level, 2, 0)[None]
        group.create_array(str(number), data=data, chunks=(1, 1, 64, 64))
        size = [1, 1, 0.5 * 2**number, 0.25 * 2**number]
        scales["datasets"].append({"path": str(number), "coordinateTransformations": [{"type": "scale", "scale": size}]})
    facts = {"multiscales": [scales], "omero": {"channels": [{"label": name} for name in ("DAPI", "CD3", "CD8")]}}
    group.attrs.update(facts if zarr_format == 2 else {"ome": {"version": "0.5", **facts}})


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_ome_zarr(zarr_format, tmp_path):
    levels = [RNG.integers(0, 65536, (150 >> n, 131 >> n, 3), dtype=np.uint16) for n in range(2)]
    ome_zarr(tmp_path / "a.zarr", zarr_format, levels)
    file = check_rows(tmp_path / "a.zarr", levels[0])
    assert file.channels == ("DAPI", "CD3", "CD8")
    assert file.pixel_size == PixelSize(0.5, 0.25, "µm")
    np.testing.assert_array_equal(file.read(1, 3, 70), levels[1][3:70])


@pytest.mark.parametrize("coarse", [COLOUR[::2, ::2, :2], COLOUR[::2, ::2].astype(np.uint16)])
def test_levels_of_a_zarr_have_the_same_channels(coarse, tmp_path):
    ome_zarr(tmp_path / "a.zarr", 2, [COLOUR, coarse])
    said = f"its level 1 has {coarse.shape[2]} channels of {coarse.dtype}, and the finest 3 of uint8"
    with pytest.raises(ValueError, match=said):
        open_image_file(tmp_path / "a.zarr")


class Harm:
    def __reduce__(self):
        return (open, ("/tmp/harmed", "w"))


def test_nothing_in_a_zarr_is_executed(tmp_path):
    """A chunk that is a pickle, with the codec that would open it."""
    (tmp_path / "a").mkdir()
    metadata = {
        "zarr_format": 2,
        "shape": [4, 4],
        "chunks": [4, 4],
        "dtype": "|u1",
        "order": "C",
        "fill_value": 0,
        "compressor": None,
        "filters": [{"id": "pickle", "protocol": 5}],
    }
    (tmp_path / "a" / ".zarray").write_text(json.dumps(metadata))
    (tmp_path / "a" / "0.0").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(ValueError, match="its codec 'pickle' is not one of those that compress numbers"):
        open_image_file(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"multiscales": [{"datasets": [{"path": "../b"}]}]}, "its array '../b' lies outside the folder"),
        ({"multiscales": [{"datasets": [{"path": "7"}]}]}, "its array '7' is missing"),
        (
            {"multiscales": [{"axes": ["y", "x"], "datasets": [{"path": "0"}]}]},
            "its axes are y, x, but an array has 4 dimensions",
        ),
        ({"multiscales": 5}, "."),
        ({"multiscales": [{"datasets": []}]}, "it is broken \\(IndexError: "),
    ],
)
def test_broken_zarrs_are_one_line(change, said, tmp_path):
    ome_zarr(tmp_path / "a", 2, [COLOUR])
    (tmp_path / "a" / ".zattrs").write_text(json.dumps(change))
    with pytest.raises(ValueError, match=said) as error:
        open_image_file(tmp_path / "a")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("change", [{"chunks": [0, 2]}, {"shape": [0, 4]}, {"shape": [4, 0]}])
def test_a_zarr_without_numbers_is_one_line(change, tmp_path):
    """A chunk without rows: whoever reads it would divide by zero."""
    (tmp_path / "a").mkdir()
    metadata = {"zarr_format": 2, "shape": [4, 4], "chunks": [2, 2], "dtype": "|u1", "order": "C", "fill_value": 0}
    (tmp_path / "a" / ".zarray").write_text(json.dumps({**metadata, "compressor": None, "filters": None, **change}))
    with pytest.raises(ValueError, match=r"an array of it is of .* numbers in chunks of"):
        open_image_file(tmp_path / "a")


@pytest.mark.parametrize(("kind", "mode"), [("png", "RGB"), ("png", "L"), ("png", "RGBA"), ("jpeg", "RGB"), ("jpeg", "L")])
def test_large_plain_images_are_read_by_rows(kind, mode, tmp_path, monkeypatch):
    """By GDAL, with the pixels that pillow decodes; but its JPEG decoder rounds differently."""
    image = Image.fromarray(RNG.integers(0, 256, (150, 131, 4), dtype=np.uint8), "RGBA").convert(mode)
    image.save(tmp_path / "a", kind, **({"subsampling": 0} if kind == "jpeg" else {}))
    decoded = open_image_file(tmp_path / "a").read(0, 0, 150).astype(int)
    monkeypatch.setattr("inline_attention.large.pillow_file.SMALL", 1000)
    file = open_image_file(tmp_path / "a")
    assert type(file).__name__ == "RasterFile"
    assert np.abs(file.read(0, 0, 150) - decoded).max() <= (kind == "jpeg")
    assert np.abs(file.read(0, 41, 78) - decoded[41:78]).max() <= (kind == "jpeg")
    assert [name for name in file.channels if name == "alpha"] == ["alpha"] * (mode == "RGBA")
    file.close()


def test_entangled_images_have_a_limit(tmp_path, monkeypatch):
    """A progressive JPEG has no rows: it is decoded as a whole, or a line says how to convert it."""
    monkeypatch.setattr("inline_attention.large.pillow_file.SMALL", 1000)
    Image.fromarray(COLOUR).save(tmp_path / "a.jpg", progressive=True)
    assert type(open_image_file(tmp_path / "a.jpg")).__name__ == "PillowFile"
    monkeypatch.setenv("INLINE_MAX_PIXELS", "10000")
    with pytest.raises(
        ValueError, match=r"are more than 10,000: INLINE_MAX_PIXELS .*; or convert it to a tiled TIFF first, by: vips"
    ):
        open_image_file(tmp_path / "a.jpg")


def test_every_reader_gives_the_same_logits(tmp_path):
    """As the array in memory, by bands of another height than the tiles."""
    torch.manual_seed(0)
    model = create_model("inline_pvt_nano", num_classes=5).eval()
    np.save(tmp_path / "a.npy", COLOUR)
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    tifffile.imwrite(tmp_path / "a.tif", COLOUR, tile=(64, 64), compression="zlib")
    zarr.create_array(str(tmp_path / "a.zarr"), data=COLOUR, chunks=(64, 64, 3))
    write_map(tmp_path / "map.tif", COLOUR, tiled=True, blockxsize=64, blockysize=64)
    expected = stream(model, COLOUR, tokens=150).logits
    for name in ("a.npy", "a.png", "a.tif", "a.zarr", "map.tif"):
        assert torch.equal(stream(model, tmp_path / name, tokens=150).logits, expected), name


def test_a_missing_library_is_one_line(tmp_path, monkeypatch):
    zarr.create_array(str(tmp_path / "a"), data=COLOUR)
    monkeypatch.setitem(__import__("sys").modules, "zarr", None)
    monkeypatch.delitem(__import__("sys").modules, "inline_attention.large.zarr_file", raising=False)
    with pytest.raises(ValueError, match=r'cannot read the image .* without zarr: pip install "inline-attention\[large\]"'):
        open_image_file(tmp_path / "a")


def test_a_folder_is_no_image(tmp_path):
    with pytest.raises(ValueError, match=r"it is a folder, and no Zarr: it has none of zarr\.json, \.zarray, \.zgroup"):
        open_image_file(tmp_path)


def test_tissue_is_found_on_a_slide_of_a_vendor(tmp_path):
    """openslide raises for a slide that is closed twice."""
    base = np.full((256, 320, 3), 230, np.uint8)
    base[64:192, 64:160] = (150, 60, 140)
    write_slide(tmp_path / "a.svs", [base], "Aperio Image Library v11.2.1\n320x256 |AppMag = 20|MPP = 0.4990")
    image = open_large_image(tmp_path / "a.svs", mask="tissue")
    found = image.has_data(0, 256).numpy()
    image.close()
    assert found[64:192, 64:160].all()
    assert not found[:32].any()


@pytest.mark.parametrize(
    ("name", "said"), [("a.svs", "it is truncated, or no slide"), ("a.tif", "it is truncated: it has no page")]
)
def test_truncated_slides_and_maps_are_called_so(name, said, tmp_path):
    """The second page of the slide is lost, and the only one of the map."""
    if name == "a.svs":
        write_slide(
            tmp_path / name, [COLOUR[:128], COLOUR[:64]], "Aperio Image Library v11.2.1\n128x128 |AppMag = 20|MPP = 0.4990"
        )
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[: len(content) // 2])
    else:
        (tmp_path / name).write_bytes(b"II*\0" + (10**6).to_bytes(4, "little") + bytes(1000))
    with pytest.raises(ValueError, match=f"cannot read the image .*{name}: .*{said}"):
        open_image_file(tmp_path / name)


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("blue", "green", "red", "nir"), "red,green,blue"),
        (("Blue", "Green", "Red", "NIR"), "red,green,blue"),
        (("blue", "green", "nir", "4"), "0,1,2"),
    ],
)
def test_channels_are_advised_by_their_colour(names, advice, tmp_path):
    pixels = np.insert(COLOUR[:, :, ::-1], 3, 7, 2)
    write_map(tmp_path / "a.tif", pixels, photometric="MINISBLACK")
    with rasterio.open(tmp_path / "a.tif", "r+") as file:
        file.descriptions = names
    with pytest.raises(ValueError, match=f"choose channels, as by --channels {advice}$"):
        open_image(tmp_path / "a.tif", channels=3)
    if advice != "0,1,2":
        image = open_large_image(tmp_path / "a.tif", channels=advice.split(","))
        np.testing.assert_allclose(image.read(0, 150).numpy() * 255, COLOUR, atol=1e-4)


def test_every_file_can_be_closed_twice(tmp_path):
    write_slide(tmp_path / "a.svs", [COLOUR[:128, :128]], "Aperio Image Library v11.2.1\n128x128 |AppMag = 20|MPP = 0.4990")
    write_map(tmp_path / "map.tif", COLOUR)
    tifffile.imwrite(tmp_path / "a.tif", COLOUR)
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", COLOUR)
    zarr.create_array(str(tmp_path / "a.zarr"), data=COLOUR)
    kinds = set()
    for path in sorted(tmp_path.iterdir()):
        file = open_image_file(path)
        kinds.add(type(file).__name__)
        file.close()
        file.close()
    assert kinds == {"SlideFile", "RasterFile", "TiffImageFile", "PillowFile", "ArrayFile", "ZarrFile"}


@pytest.mark.parametrize(("dtype", "nodata"), [("float32", np.nan), ("uint8", 255)])
def test_a_map_is_a_mask_where_it_holds_data(tmp_path, dtype, nodata):
    values = RNG.choice(np.array([0, 1, nodata], dtype), (40, 60, 1))
    write_map(tmp_path / "mask.tif", values, nodata=nodata)
    np.save(tmp_path / "image.npy", np.zeros((40, 60, 3), np.uint8))
    image = open_large_image(tmp_path / "image.npy", mask=tmp_path / "mask.tif")
    np.testing.assert_array_equal(image.has_data(3, 40).numpy(), values[3:, :, 0] == 1)


@pytest.mark.parametrize("by", ["rasterio", "tifffile"])
@pytest.mark.parametrize("zero", [0, 120])
def test_a_mask_of_a_palette_counts_by_its_numbers_or_is_refused(tmp_path, by, zero):
    values = RNG.integers(0, 2, (40, 60, 1), dtype=np.uint8)
    path = tmp_path / "mask.tif"
    if by == "rasterio":
        write_map(path, values)
        with rasterio.open(path, "r+") as file:
            file.write_colormap(1, {0: (zero, 0, 0, 255), 1: (255, 0, 0, 255)})
    else:
        colours = np.zeros((3, 256), np.uint16)
        colours[0, :2] = zero << 8, 65_535
        tifffile.imwrite(path, values[:, :, 0], photometric="palette", colormap=colours)
    np.save(tmp_path / "image.npy", np.zeros((40, 60, 3), np.uint8))
    if zero:
        with pytest.raises(ValueError, match="has a palette in which 0 is not black"):
            open_large_image(tmp_path / "image.npy", mask=path)
        return
    image = open_large_image(tmp_path / "image.npy", mask=path)
    np.testing.assert_array_equal(image.has_data(0, 40).numpy(), values[:, :, 0] == 1)


def test_a_folder_beside_an_image_does_not_matter(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    file = open_image_file(tmp_path / "a.png")
    np.testing.assert_array_equal(file.read(0, 0, len(COLOUR)), COLOUR)
    file.close()
