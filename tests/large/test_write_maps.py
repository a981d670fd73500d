"""Maps that are written: equal when other libraries read them, in the right place, whole or not there."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from inline_attention.large.class_areas import area_record
from inline_attention.large.image_file import Georeference, Level, PixelSize
from inline_attention.large.map_formats import FORMATS, check_libraries, format_of, write_map
from inline_attention.large.map_levels import MapLevels, majority
from inline_attention.large.polygons import write_polygons
from inline_attention.large.preview import LONGEST, draw_preview
from inline_attention.large.resolution import georeference_at, pixel_size_at
from inline_attention.large.segment import LabelRows, ProbabilityRows
from inline_attention.large.segmented_map import MapFiles, Place, collect_map
from inline_attention.large.thumbnail import thumbnail_size
from inline_attention.large.whole_path import whole_path

openslide = pytest.importorskip("openslide")
rasterio = pytest.importorskip("rasterio")
tifffile = pytest.importorskip("tifffile")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

SIZE = (700, 1103)
CLASSES = ("ground", "water", "trees")
UTM = rasterio.crs.CRS.from_epsg(32632)
MICRONS = PixelSize(0.25, 0.5, "µm")
METRES = PixelSize(10.0, 10.0, "m")
EARTH = Georeference(UTM.to_wkt(), (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_300_000.0))
PATHS = {"cog": "map.tif", "ome-tiff": "map.ome.tif", "ome-zarr": "map.zarr"}


@dataclass
class Streamed:
    """What `stream_segment` returns, from an array (H, W) of labels."""

    array: np.ndarray
    classes: int = len(CLASSES)
    band: int = 97

    def __post_init__(self):
        self.height, self.width = self.array.shape
        self.dtype = self.array.dtype
        self.ignored = 255 if self.dtype == np.uint8 else 65_535

    def labels(self):
        for start in range(0, self.height, self.band):
            rows = self.array[start : start + self.band]
            yield LabelRows(start, start + len(rows), rows)

    def probabilities(self):
        for start, stop, labels in self.labels():
            values = np.full((*labels.shape, self.classes), 0.2 / (self.classes - 1), np.float32)
            values[np.arange(self.classes) == labels[..., None]] = 0.8
            values[labels == self.ignored] = np.nan
            yield ProbabilityRows(start, stop, values)


def blobs(size=SIZE, classes=3, dtype=np.uint8, *, invalid=True):
    """Labels in patches of uneven sides, with a corner that is not valid."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, classes, (size[0] // 37 + 1, size[1] // 53 + 1)).astype(dtype)
    labels = np.kron(coarse, np.ones((37, 53), dtype))[: size[0], : size[1]]
    if invalid:
        labels[:100, :45] = np.iinfo(dtype).max
    return labels


def place(pixel_size=None, georeference=None, finest=SIZE):
    """Of a map of SIZE, which was read from a file whose finest level has this size."""
    file = SimpleNamespace(levels=[Level(*finest, 1)], pixel_size=pixel_size, georeference=georeference)
    sizes = {"pixel_size": pixel_size_at(file, SIZE), "georeference": georeference_at(file, SIZE)}
    return Place.of(SimpleNamespace(file=file, height=SIZE[0], width=SIZE[1], **sizes))


def collected(labels=None, where=None, probabilities=None):
    labels = blobs() if labels is None else labels
    streamed = Streamed(labels)
    files = MapFiles.reserve(SIZE, len(CLASSES), probabilities)
    if labels.dtype == np.uint16:  # as for more classes
        files = files._replace(labels=MapLevels(1, SIZE, "uint16", majority))
    return collect_map(streamed, CLASSES, where, files)


def read(path):
    """The numbers of a file, (H, W) or (classes, H, W), by a library that did not write it where there is one."""
    if path.suffix == ".zarr":
        return zarr.open_array(str(path / "0"), mode="r")[:]
    if ".ome" in path.name:
        pages = tifffile.imread(path)
        with rasterio.open(path) as file:  # sees the first plane
            assert np.array_equal(file.read(1), pages if pages.ndim == 2 else pages[0], equal_nan=pages.dtype.kind == "f")
        return pages
    pages = tifffile.imread(path)
    return pages if pages.ndim == 2 else np.moveaxis(pages, -1, 0)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_labels_are_read_by_other_libraries(tmp_path, name, dtype):
    labels = blobs(dtype=dtype)
    path = tmp_path / PATHS[name]
    assert write_map(path, collected(labels), name) == name
    assert (read(path) == labels).all()
    assert read(path).dtype == dtype
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [("cog", "uint8", 1 / 255), ("cog", "float32", 0), ("ome-tiff", "uint8", 1 / 255), ("ome-tiff", "float32", 0),
     ("ome-zarr", "float16", 1e-3), ("ome-zarr", "uint8", 1 / 255)],
)  # fmt: skip
def test_probabilities_are_read_by_other_libraries(tmp_path, name, kind, step):
    labels = blobs()
    expected = np.concatenate([rows.probabilities for rows in Streamed(labels).probabilities()]).transpose(2, 0, 1)
    path = tmp_path / PATHS[name]
    found = collected(labels, probabilities=kind)
    write_map(path, found, name)
    got = read(path)
    assert got.shape == (3, *SIZE)
    assert got.dtype == kind
    valid = labels != 255
    scale = 255 if kind == "uint8" else 1
    assert np.abs(got / scale - expected)[:, valid].max() <= step / 2
    assert (got[:, ~valid] == 0).all() if kind == "uint8" else np.isnan(got[:, ~valid]).all()
    assert found.counts == tuple(int((labels == number).sum()) for number in range(3))


def test_labels_of_many_classes_have_16_bits():
    assert MapFiles.reserve((3, 5), 255).labels.dtype == np.uint8
    assert MapFiles.reserve((3, 5), 256).labels.dtype == np.uint16


def test_a_library_that_is_missing_is_said_before_any_work(monkeypatch):
    for module, name, polygons in (
        ("tifffile", "ome-tiff", False),
        ("zarr", "ome-zarr", False),
        ("rasterio", "ome-tiff", True),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ModuleNotFoundError):
                check_libraries(name, polygons=polygons)


def test_what_a_format_cannot_hold_is_said(tmp_path):
    found = collected(probabilities="float16")
    for name in ("cog", "ome-tiff"):
        with pytest.raises(ValueError, match="no float16"):
            write_map(tmp_path / PATHS[name], found, name)
    with pytest.raises(ValueError, match="there is no format 'png'"):
        write_map(tmp_path / "x.png", found, "png")
    with pytest.raises(ValueError, match=r"\.tif, \.ome\.tif or \.zarr, got .*x\.png"):
        write_map(tmp_path / "x.png", found)
    assert list(tmp_path.iterdir()) == []


def test_the_name_and_the_image_decide_on_the_format(tmp_path):
    for name, on_earth, expected in (
        ("a.tif", True, "cog"), ("a.TIFF", False, "ome-tiff"), ("a.ome.tif", True, "ome-tiff"), ("a.zarr", True, "ome-zarr"),
    ):  # fmt: skip
        assert format_of(tmp_path / name, georeferenced=on_earth) == expected


def test_a_cog_lies_where_the_image_does(tmp_path):
    """Read at a third of the resolution, its pixels are three times as large; the corner stays."""
    path = tmp_path / "map.tif"
    write_map(path, collected(where=place(METRES, EARTH, (3 * SIZE[0], 3 * SIZE[1]))))
    with rasterio.open(path) as file:
        assert file.crs == UTM
        assert file.transform[:6] == (30.0, 0.0, 500_000.0, 0.0, -30.0, 5_300_000.0)
        assert (file.nodata, file.block_shapes) == (255, [(512, 512)])
        assert file.tags(ns="IMAGE_STRUCTURE") | {"LAYOUT": "COG", "COMPRESSION": "DEFLATE"} == file.tags(ns="IMAGE_STRUCTURE")
        assert file.overviews(1) == [2, 4]
        assert json.loads(file.tags()["classes"]) == list(CLASSES)
        assert len({file.colormap(1)[number] for number in range(3)}) == 3
        halved = file.read(1, out_shape=(350, 552))
    assert (halved == blobs()[::2, ::2]).mean() > 0.98


def test_probabilities_of_a_cog_are_named(tmp_path):
    write_map(tmp_path / "map.tif", collected(where=place(METRES, EARTH), probabilities="uint8"))
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.descriptions == CLASSES


def test_an_ome_tiff_has_levels_and_the_size_of_a_pixel(tmp_path):
    path = tmp_path / "map.ome.tif"
    write_map(path, collected(where=place(MICRONS, None, (2 * SIZE[0], 2 * SIZE[1]))))
    with tifffile.TiffFile(path) as file:
        assert file.is_ome
        assert [level.shape for level in file.series[0].levels] == [(700, 1103), (350, 552), (175, 276)]
        pixels = tifffile.xml2dict(file.ome_metadata)["OME"]["Image"]["Pixels"]
        assert (pixels["PhysicalSizeY"], pixels["PhysicalSizeX"], pixels["PhysicalSizeXUnit"]) == (0.5, 1.0, "µm")
        halved = file.series[0].levels[1].asarray()
        tags = [level.pages[0].tags for level in file.series[0].levels]
        across = [found["XResolution"].value[0] / found["XResolution"].value[1] for found in tags]
        assert across == pytest.approx([1e4, 1e4 * 552 / 1103, 1e4 * 276 / 1103])
        assert file.pages[0].compression.name == "ADOBE_DEFLATE"
    assert (halved == blobs()[::2, ::2]).mean() > 0.98
    with openslide.OpenSlide(path) as slide:
        assert slide.dimensions == SIZE[::-1]
        region = np.asarray(slide.read_region((300, 200), 0, (256, 128)))
    assert (region[..., 0] == blobs()[200:328, 300:556]).all()


def test_an_ome_zarr_has_levels_axes_and_colours(tmp_path):
    path = tmp_path / "map.zarr"
    write_map(path, collected(where=place(MICRONS)))
    attributes = json.loads((path / ".zattrs").read_text())
    axes, datasets = (attributes["multiscales"][0][name] for name in ("axes", "datasets"))
    assert [(axis["name"], axis["unit"]) for axis in axes] == [("y", "micrometer"), ("x", "micrometer")]
    assert [dataset["coordinateTransformations"][0]["scale"] for dataset in datasets] == [[0.25, 0.5], [0.5, 1.0], [1.0, 2.0]]
    assert zarr.open_array(str(path / "1"), mode="r").shape == (350, 552)
    assert [entry["class"] for entry in attributes["image-label"]["properties"]] == list(CLASSES)
    assert attributes["ignored"] == 255
    assert (path / "0" / "1" / "2").is_file()


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_there_is_replaced_or_kept(tmp_path, monkeypatch, name):
    path = tmp_path / PATHS[name]
    write_map(path, collected(blobs(invalid=False)), name)
    write_map(path, collected(np.zeros(SIZE, np.uint8)), name)
    before = read(path)
    assert before.max() == 0
    broken = collected()
    with monkeypatch.context() as patch:
        patch.setattr(broken.labels, "release", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            write_map(path, broken, name)
    assert (read(path) == before).all()
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def fail():
    raise RuntimeError("in the middle")


def test_areas_are_exact():
    labels = blobs()
    labels[0, 50:60] = 255
    record = area_record(collected(labels, place(MICRONS)))
    counts = [int((labels == number).sum()) for number in range(3)]
    assert [entry["pixels"] for entry in record["classes"]] == counts
    assert [entry["um2"] for entry in record["classes"]] == [0.125 * count for count in counts]
    assert record["classes"][1]["mm2"] == pytest.approx(0.125e-6 * counts[1])
    assert record["invalid_pixels"] == int((labels == 255).sum())
    assert sum(entry["share"] for entry in record["classes"]) == pytest.approx(1)
    on_earth = area_record(collected(labels, place(METRES, EARTH, (2 * SIZE[0], 2 * SIZE[1]))))["classes"][0]
    assert (on_earth["m2"], on_earth["ha"]) == (400.0 * counts[0], pytest.approx(0.04 * counts[0]))
    assert "m2" not in area_record(collected(labels))["classes"][0]


@pytest.mark.parametrize("on_earth", [True, False], ids=["map", "slide"])
def test_polygons_rasterised_again_are_the_labels(tmp_path, on_earth):
    """On a slide they are in pixels of the finest level, here three times as fine as the map."""
    from rasterio.features import rasterize

    labels, path = blobs(), tmp_path / "map.geojson"
    where = place(METRES, EARTH) if on_earth else place(MICRONS, None, (3 * SIZE[0], 3 * SIZE[1]))
    count = write_polygons(path, collected(labels, where))
    collection = json.loads(path.read_text())
    assert len(collection["features"]) == count > 50
    properties = [feature["properties"] for feature in collection["features"]]
    if on_earth:
        assert collection["crs"]["properties"]["name"] == "urn:ogc:def:crs:EPSG::32632"
        transform, names = rasterio.Affine(*EARTH.transform), [entry["class"] for entry in properties]
    else:
        assert "crs" not in collection
        assert {entry["objectType"] for entry in properties} == {"annotation"}
        transform, names = rasterio.Affine.scale(3), [entry["classification"]["name"] for entry in properties]
    geometries = [feature["geometry"] for feature in collection["features"]]
    again = rasterize(
        zip(geometries, map(CLASSES.index, names), strict=True), SIZE, fill=255, transform=transform, dtype="uint8"
    )
    assert (again == labels).all()
    assert [file.name for file in tmp_path.iterdir()] == ["map.geojson"]


def test_the_preview_shows_image_classes_and_legend():
    labels = blobs()
    found = collected(labels)
    height, width = thumbnail_size(SIZE, LONGEST)
    assert (height, width) == (650, 1024)
    thumbnail = Image.new("RGB", (width, height), (10, 20, 30))
    drawn = np.asarray(draw_preview(thumbnail, found))
    assert drawn.shape[1] == 2 * width + 8
    assert drawn.shape[0] > height
    assert (drawn[:height, :width] == (10, 20, 30)).all()
    coloured = drawn[:height, width + 8 :]
    assert (coloured[10, 10] == (10, 20, 30)).all()  # not valid
    middles = [(row, column) for row in range(120, 640, 37) for column in range(70, 1000, 53)]
    shown = {
        (int(labels[int(row * 700 / 650), int(column * 1103 / 1024)]), *coloured[row, column].tolist())
        for row, column in middles
    }
    assert len({colour[1:] for colour in shown}) >= 3
    assert {colour[0] for colour in shown} == {0, 1, 2}
    assert draw_preview(Image.new("RGB", (1024, 100)), found).height > 200  # one above the other


def test_a_killed_writer_leaves_what_the_next_one_removes(tmp_path):
    path = tmp_path / "map.tif"
    path.write_text("before")
    words = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom inline_attention.large.whole_path import whole_path\n"
        "with whole_path(Path(sys.argv[1])) as t:\n t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", words, str(path)], check=False).returncode == -9
    assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 2
    own = tmp_path / f".map.tif.elsewhere.{os.getpid()}.tmp"
    own.write_text("another machine writes this")
    with whole_path(path) as temporary:
        temporary.write_text("after")
        assert len(list(tmp_path.iterdir())) == 3
    assert path.read_text() == "after"
    assert sorted(file.name for file in tmp_path.iterdir()) == [own.name, "map.tif"]
