"""TIFFs of every layout, written by tifffile, are read row by row as they were written."""

import numpy as np
import pytest
import tifffile

from inline_attention.large.image_file import ALPHA, COLOURS, PixelSize
from inline_attention.large.open_file import open_image_file
from inline_attention.large.open_large_image import open_large_image

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (150, 131, 3), dtype=np.uint8)
FIVE = RNG.integers(0, 65536, (150, 131, 5), dtype=np.uint16)
PLANES = {"photometric": "minisblack", "metadata": {"axes": "CYX"}}
LAYOUTS = {
    "one strip": (COLOUR, {}),
    "strips": (COLOUR, {"rowsperstrip": 17, "compression": "zlib", "predictor": True}),
    "tiles": (COLOUR, {"tile": (64, 48), "compression": "lzw"}),
    "bigtiff": (COLOUR, {"tile": (64, 48), "bigtiff": True}),
    "planes of samples": (COLOUR, {"planarconfig": "separate", "photometric": "rgb", "tile": (32, 32), "compression": "zlib"}),
    "planes in one piece": (COLOUR, {"planarconfig": "separate", "photometric": "rgb"}),
    "big-endian": (FIVE[:, :, :1], {"byteorder": ">", "tile": (64, 64)}),
    "big-endian in one piece": (FIVE[:, :, :1], {"byteorder": ">"}),
    "five samples": (FIVE, {"photometric": "minisblack", "planarconfig": "contig", "tile": (64, 64)}),
    "five pages": (FIVE, {**PLANES, "compression": "zstd", "rowsperstrip": 20}),
    "five pages in one piece": (FIVE, PLANES),
    "imagej": (FIVE, {"imagej": True, "metadata": {"axes": "CYX"}}),
    "float": (FIVE[:, :, :1].astype(np.float32) / 7, {"tile": (16, 16), "compression": "zlib", "predictor": 3}),
    "uint32": (FIVE[:, :, :1].astype(np.uint32) * 9999, {"tile": (16, 16)}),
    "black and white": (FIVE[:, :, :1] > 9999, {"photometric": "minisblack"}),
}


def pages_of(pixels, options):
    """As tifffile wants them: separate planes and pages first."""
    pages = options.get("planarconfig") == "separate" or "metadata" in options
    return np.moveaxis(pixels, 2, 0) if pages else pixels.squeeze()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read_exactly(layout, tmp_path):
    """All rows, rows from within a tile, and two channels the other way round."""
    pixels, options = LAYOUTS[layout]
    tifffile.imwrite(tmp_path / "a.tif", pages_of(pixels, options), **options)
    file = open_image_file(tmp_path / "a.tif")
    height, width, count = pixels.shape
    assert (file.levels[0].height, file.levels[0].width, len(file.channels)) == (height, width, count)
    assert file.dtype == pixels.dtype
    np.testing.assert_array_equal(file.read(0, 0, height), pixels)
    np.testing.assert_array_equal(file.read(0, 37, 101), pixels[37:101])
    chosen = [count - 1, 0] if count > 1 else [0]
    np.testing.assert_array_equal(file.read(0, 149, 150, chosen), pixels[149:150, :, chosen])
    file.close()


def test_pyramids_of_planes(tmp_path):
    """As OME-TIFF has them: each page of a channel has its own smaller ones."""
    levels = [RNG.integers(0, 65536, (3, 128 >> n, 192 >> n), dtype=np.uint16) for n in range(3)]
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as writer:
        writer.write(levels[0], subifds=2, tile=(32, 32), metadata={"axes": "CYX"}, photometric="minisblack")
        for level in levels[1:]:
            writer.write(level, tile=(32, 32), subfiletype=1, photometric="minisblack")
    file = open_image_file(tmp_path / "a.ome.tif")
    for number, level in enumerate(levels):
        np.testing.assert_array_equal(file.read(number, 5, 30), np.moveaxis(level[:, 5:30], 0, 2))
        np.testing.assert_array_equal(file.read(number, 5, 30, [2]), level[2, 5:30, :, None])
    file.close()


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((4, 40, 40), {"metadata": {"axes": "ZYX"}, "photometric": "minisblack"}, "it has 4 planes in depth: an image of one"),
        ((4, 40, 40), {"metadata": {"axes": "TYX"}, "photometric": "minisblack"}, "it has 4 times: an image of one is needed"),
        ((40, 40, 4), {"photometric": "separated"}, "its colours, SEPARATED, are not RGB or grey: convert it first"),
    ],
)
def test_what_is_no_image_of_colours_is_refused(shape, options, said, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.zeros(shape, np.uint8), **options)
    with pytest.raises(ValueError, match=said):
        open_large_image(tmp_path / "a.tif")


@pytest.mark.parametrize("by", ["subifds", "pages"])
def test_pyramids(by, tmp_path):
    """In SubIFDs, as OME-TIFF has them, and in pages that are marked as reduced."""
    levels = [RNG.integers(0, 256, (240 >> n, 320 >> n, 3), dtype=np.uint8) for n in range(3)]
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(levels[0], tile=(64, 64), **({"subifds": 2} if by == "subifds" else {"metadata": None}))
        for level in levels[1:]:
            more = {} if by == "subifds" else {"metadata": None}
            writer.write(level, tile=(32, 32), subfiletype=1, **more)
    file = open_image_file(tmp_path / "a.tif")
    assert [(each.height, each.width, each.downsample) for each in file.levels] == [
        (240, 320, 1.0),
        (120, 160, 2.0),
        (60, 80, 4.0),
    ]
    for number, level in enumerate(levels):
        np.testing.assert_array_equal(file.read(number, 5, 50), level[5:50])
    file.close()


def test_what_ome_says_is_known(tmp_path):
    facts = {
        "axes": "CYX",
        "Channel": {"Name": ["DAPI", "CD3", "CD8", "CD20", "PanCK"]},
        "PhysicalSizeX": 500,
        "PhysicalSizeXUnit": "nm",
        "PhysicalSizeY": 0.25,
        "PhysicalSizeYUnit": "µm",
    }
    tifffile.imwrite(tmp_path / "a.ome.tif", np.moveaxis(FIVE, 2, 0), photometric="minisblack", tile=(64, 64), metadata=facts)
    file = open_image_file(tmp_path / "a.ome.tif")
    assert file.channels == ("DAPI", "CD3", "CD8", "CD20", "PanCK")
    assert file.pixel_size == PixelSize(0.25, 0.5, "µm")
    file.close()


@pytest.mark.parametrize(("extra", "names"), [((), COLOURS), (("unassalpha",), (*COLOURS, ALPHA))])
def test_colours_without_a_name_in_ome_stay_colours(extra, names, tmp_path):
    """And transparency stays transparency: a model of three channels takes the file as it is."""
    samples = COLOUR if not extra else np.dstack([COLOUR, COLOUR[:, :, 0]])
    tifffile.imwrite(tmp_path / "a.ome.tif", samples, photometric="rgb", extrasamples=extra, metadata={"axes": "YXS"})
    file = open_image_file(tmp_path / "a.ome.tif")
    assert file.channels == names
    file.close()


@pytest.mark.parametrize(
    ("resolution", "unit", "size"), [((20000, 10000), 3, PixelSize(1.0, 0.5, "µm")), ((300, 300), 2, None), ((1, 1), 1, None)]
)
def test_the_resolution_of_a_plain_tiff_is_known_unless_it_says_how_to_print(resolution, unit, size, tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", COLOUR, resolution=resolution, resolutionunit=unit)
    file = open_image_file(tmp_path / "a.tif")
    assert file.pixel_size == size
    file.close()


def broken(tmp_path, how):
    """A TIFF of 3 x 3 tiles, spoilt."""
    tifffile.imwrite(tmp_path / "a.tif", COLOUR, tile=(64, 64), compression="zlib")
    content = bytearray((tmp_path / "a.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "a.tif") as tiff:
        tags, offsets, order = tiff.pages[0].tags, tiff.pages[0].dataoffsets, tiff.byteorder
        places = {name: tags[name].valueoffset for name in ("TileByteCounts", "Compression", "ImageLength", "TileWidth")}
        kinds = {name: tags[name].dtype for name in places}

    def put(name, value):
        size = {3: 2, 4: 4}[int(kinds[name])]
        content[places[name] : places[name] + size] = value.to_bytes(size, "little" if order == "<" else "big")

    if how == "truncated":
        del content[-3000:]
    elif how == "missing":
        put("TileByteCounts", 0)
    elif how == "unknown compression":
        put("Compression", 12345)
    elif how == "taller":
        put("ImageLength", 60000)
    elif how == "garbage":
        content[offsets[0] : offsets[0] + 50] = bytes(50)
    (tmp_path / "a.tif").write_bytes(content)
    return tmp_path / "a.tif"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "it is truncated: its tiles end at byte [0-9,]+, and it has [0-9,]+"),
        ("missing", "the tile in row 0, column 0 is missing"),
        ("unknown compression", "12345"),
        ("taller", "an image of 60,000 x 131 has 2,814 tiles of 64 x 64, but the file has 9"),
        ("garbage", "."),
    ],
)
def test_broken_files_are_one_line(how, said, tmp_path):
    path = broken(tmp_path, how)
    with pytest.raises(ValueError, match=said) as error:
        open_large_image(path).read(0, 150)
    assert str(error.value).startswith(f"cannot read the image {path}: ")
    assert "\n" not in str(error.value)
