"""`inline predict --task segment --stream`: maps of large images, each made once, going on after a stop."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inline_attention.cli.file_batch import BatchFile, Shard, explain_failure, list_files, of_shard, parse_shard
from inline_attention.cli.main import main
from inline_attention.cli.map_report import print_summary, totals
from inline_attention.cli.segment_file import MapMaker
from inline_attention.large.image_reader import open_image
from inline_attention.large.map_levels import MapLevels
from inline_attention.large.segment import stream_segment
from inline_attention.training.dense_task import load_dense

from ..training.small import environment, write_recipe
from ..training.small_dense import segment_recipe, shapes, write_maps
from .test_dense import failed, ran

rasterio = pytest.importorskip("rasterio")
rasterize = pytest.importorskip("rasterio.features").rasterize
tifffile = pytest.importorskip("tifffile")

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
SIZE = (90, 130)
tiles = MapLevels.tiles


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run to segment, and images/: a slide with micrometres, a map in UTM, a photo in a folder of its own."""
    here = tmp_path_factory.mktemp("segment")
    recipe = segment_recipe(write_maps(here / "maps"), schedule={"steps": 40}, run={"evaluate": 40})
    path = write_recipe(here / "segment.toml", recipe)
    main(["train", "--task", "segment", "--recipe", str(path), "--out", str(here / "run"), "--device", "cpu"])
    (here / "images" / "photos").mkdir(parents=True)
    generator = np.random.default_rng(1)
    slide, scene, photo = (shapes(generator, *SIZE)[0] for _ in range(3))
    tifffile.imwrite(
        here / "images" / "slide.ome.tif", slide, tile=(64, 64), photometric="rgb",
        metadata={"axes": "YXS"} | {f"PhysicalSize{a}": 0.5 for a in "XY"} | {f"PhysicalSize{a}Unit": "µm" for a in "XY"},
    )  # fmt: skip
    transform = rasterio.Affine(2.0, 0.0, 400_000.0, 0.0, -2.0, 5_000_000.0)
    scene[:40, :32] = 0
    profile = {
        "nodata": 0,
        "driver": "GTiff",
        "height": SIZE[0],
        "width": SIZE[1],
        "count": 3,
        "dtype": "uint8",
        "photometric": "RGB",
    }
    with rasterio.open(here / "images" / "scene.tif", "w", **profile, crs="EPSG:32633", transform=transform) as file:
        file.write(scene.transpose(2, 0, 1))
    Image.fromarray(photo).save(here / "images" / "photos" / "photo.png")
    return here


def predict(capsys, folder, *words):
    return ran(capsys, "predict", *words, "--model", folder / "run", "--task", "segment", "--stream")


def expected(folder, image):
    dense = load_dense(str(folder / "run"))
    data = dense.task.recipe.data
    reader = open_image(str(image), channels=3, mean=data.mean, std=data.std)
    return np.concatenate([rows.labels for rows in stream_segment(dense.model, reader, tokens=300).labels()])


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def test_one_image_becomes_one_map(folder, capsys, tmp_path):
    image, out = folder / "images" / "slide.ome.tif", tmp_path / "mask.tif"
    text = predict(capsys, folder, image, "--out", out, "--polygons", tmp_path / "areas.geojson")
    assert "ground" in text
    assert "mm²" in text
    count = len(json.loads((tmp_path / "areas.geojson").read_text())["features"])
    files = [tmp_path / name for name in ("mask.tif", "mask.png", "mask.json", "areas.geojson")]
    assert text.splitlines()[-1] == f"Written: {', '.join(map(str, files))} ({count} {'area' if count == 1 else 'areas'})"
    with rasterio.open(out) as file:
        assert (file.read(1) == expected(folder, image)).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["areas.geojson", "mask.json", "mask.png", "mask.tif"]
    record = json.loads((tmp_path / "mask.json").read_text())
    assert (record["format"], record["height"], record["width"]) == ("ome-tiff", *SIZE)
    counts = np.bincount(expected(folder, image).ravel(), minlength=3)
    assert [entry["pixels"] for entry in record["classes"]] == counts.tolist()
    assert [entry["um2"] for entry in record["classes"]] == (0.25 * counts).tolist()
    assert record["polygon_count"] == len(json.loads((tmp_path / "areas.geojson").read_text())["features"]) > 0


def test_a_map_stays_where_it_is_on_the_earth(folder, capsys, tmp_path):
    """At twice the pixel size; what the file has no data for is not labelled."""
    words = ("--out", tmp_path / "mask.tif", "--mpp", 4, "--polygons", tmp_path / "areas.geojson", "--json")
    (record,) = records(predict(capsys, folder, folder / "images" / "scene.tif", *words))
    assert record["format"] == "cog"
    with rasterio.open(tmp_path / "mask.tif") as file:
        labels = file.read(1)
        assert (file.crs.to_epsg(), file.nodata) == (32633, 255)
        assert file.transform[:6] == (4.0, 0.0, 400_000.0, 0.0, -4.0, 5_000_000.0)
    assert labels.shape == (45, 65)
    assert ((labels == 255) == (np.indices(labels.shape) < np.array([20, 16])[:, None, None]).all(0)).all()
    assert record["invalid_pixels"] == 20 * 16
    assert [entry["m2"] for entry in record["classes"]] == [16.0 * int((labels == number).sum()) for number in range(3)]
    polygons = json.loads((tmp_path / "areas.geojson").read_text())["features"]
    names = [entry["name"] for entry in record["classes"]]
    shapes = [(feature["geometry"], names.index(feature["properties"]["class"])) for feature in polygons]
    again = rasterize(shapes, labels.shape, fill=255, transform=rasterio.Affine(4.0, 0.0, 400_000.0, 0.0, -4.0, 5_000_000.0))
    assert (again == labels).all()


def test_what_is_masked_has_no_label(folder, capsys, tmp_path):
    """And another mask in the same file makes the map again."""
    words = (folder / "images" / "slide.ome.tif", "--out", tmp_path / "mask.tif", "--mask", tmp_path / "tissue.png", "--json")
    for split in (40, 90):
        tissue = np.zeros(SIZE, np.uint8)
        tissue[:, :split] = 255
        Image.fromarray(tissue).save(tmp_path / "tissue.png")
        (record,) = records(predict(capsys, folder, *words))
        assert ((tifffile.imread(tmp_path / "mask.tif") == 255) == (tissue == 0)).all()
        assert record["invalid_pixels"] == SIZE[0] * (SIZE[1] - split)
    drawn = np.asarray(Image.open(tmp_path / "mask.png"))
    image = tifffile.imread(folder / "images" / "slide.ome.tif")
    factor = round(drawn.shape[1] / (2 * SIZE[1]))
    assert np.abs(drawn[45 * factor, 100 * factor].astype(int) - image[45, 100]).max() < 40  # the image is drawn all the same


def test_a_folder_becomes_a_folder_and_is_done_once(folder, capsys, tmp_path):
    words = (folder / "images", "--out", tmp_path / "out", "--out-format", "ome-tiff", "--json")
    first = records(predict(capsys, folder, *words))
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*.tif"))] == [
        "out/photos/photo.ome.tif", "out/scene.ome.tif", "out/slide.ome.tif",
    ]  # fmt: skip
    for fact in first:
        assert (tifffile.imread(fact["map"]) == expected(folder, fact["image"])).all()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["images"], summary["failed"], len(summary["results"])) == (3, [], 3)
    assert sum(entry["pixels"] for entry in summary["classes"]) == 3 * SIZE[0] * SIZE[1] - 40 * 32
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tif")}
    again = records(predict(capsys, folder, *words))
    assert all(fact["done_before"] for fact in again)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tif")}
    (tmp_path / "out" / "scene.ome.tif").write_bytes(b"broken")
    redone = records(predict(capsys, folder, *words))
    assert ["done_before" in fact for fact in redone] == [True, False, True]
    other = records(predict(capsys, folder, *words, "--probabilities", "uint8"))
    assert not any("done_before" in fact for fact in other)
    assert tifffile.imread(tmp_path / "out" / "scene.ome.tif").shape == (3, *SIZE)


def test_a_bad_image_does_not_stop_the_others(folder, capsys, tmp_path):
    data = (folder / "images" / "slide.ome.tif").read_bytes()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cut.tif").write_bytes(data[: len(data) // 2])
    (tmp_path / "in" / "good.tif").write_bytes(data)
    words = ["predict", str(tmp_path / "in"), "--model", str(folder / "run"), "--stream", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stop:
        main(words)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("inline: ")]
    assert stop.value.code == 2
    assert len(lines) == 2
    assert "cut.tif" in lines[0]
    assert lines[1] == "inline: 1 of 2 images failed, named above"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "good.json",
        "good.ome.tif",
        "good.png",
        "summary.json",
    ]
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["failed"][0]["image"].endswith("cut.tif")
    main([*words, "--skip-bad"])
    capsys.readouterr()
    main([words[0], str(tmp_path / "in" / "cut.tif"), *words[2:-1], str(tmp_path / "one.tif"), "--skip-bad"])
    assert "cut.tif" in capsys.readouterr().err  # also if it is the only one
    assert not (tmp_path / "one.tif").exists()


def test_what_nobody_expects_of_an_image_does_not_stop_the_others(folder, capsys, tmp_path, monkeypatch):
    write_copies(folder, tmp_path / "in", 2, 1)
    make = MapMaker.make

    def fail_once(maker, image, *given):
        if image.name == "0.png":
            raise IndexError("list index out of range\nmore")
        return make(maker, image, *given)

    monkeypatch.setattr(MapMaker, "make", fail_once)
    with pytest.raises(SystemExit) as stop:
        predict(capsys, folder, tmp_path / "in", "--out", tmp_path / "out")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("inline: ")]
    assert stop.value.code == 2
    assert lines == [
        f"inline: {tmp_path / 'in' / '0.png'}: IndexError: list index out of range",
        "inline: 1 of 2 images failed, named above",
    ]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["images"], len(summary["failed"])) == (1, 1)
    assert explain_failure(Path("a.tif"), MemoryError()) == "a.tif: MemoryError"
    assert explain_failure(Path("a.tif"), ValueError("cannot read a.tif")) == "cannot read a.tif"
    with pytest.raises(ModuleNotFoundError):
        explain_failure(Path("a.tif"), ModuleNotFoundError("zarr"))


def test_a_zarr_that_lost_a_chunk_is_made_again(folder, capsys, tmp_path):
    words = (folder / "images" / "slide.ome.tif", "--out", tmp_path / "a.zarr", "--json")
    predict(capsys, folder, *words)
    (again,) = records(predict(capsys, folder, *words))
    assert again["done_before"]
    chunk = tmp_path / "a.zarr" / "0" / "0" / "0"
    content = chunk.read_bytes()
    for harm in (chunk.unlink, lambda: chunk.write_bytes(content[:-1])):
        harm()
        (again,) = records(predict(capsys, folder, *words))
        assert "done_before" not in again
        assert chunk.read_bytes() == content


def test_shards_have_each_file_once(folder, tmp_path, monkeypatch):
    files = [BatchFile(tmp_path / str(number), tmp_path) for number in range(23)]
    for texts in (["0/4", "1/4", "2/4", "3/4"], ["1/4", "2/4", "3/4", "4/4"]):
        taken = [file for text in texts for file in of_shard(files, parse_shard(text))]
        assert sorted(taken) == sorted(files)
    monkeypatch.setenv("WORLD_SIZE", "3")
    taken = []
    for text in ("0/2", "1/2"):
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            taken += of_shard(files, parse_shard(text))
    assert sorted(taken) == sorted(files)
    assert parse_shard(None) == Shard(2, 3)
    for wrong in ("5/4", "a/4", "1", "0/0", "-1/4"):
        with pytest.raises(ValueError, match="--shard is a number and how many"):
            parse_shard(wrong)


def test_files_are_found_once_and_named_apart(tmp_path, monkeypatch):
    for name in (
        "a.svs",
        "a.tif",
        "b/c.png",
        "b/notes.txt",
        "b/.hidden.png",
        "e.vrt",
        "d.zarr/.zgroup",
        "d.zarr/0/x.png",
        "out/a.tif",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    found = list_files([".", "a.svs", "*.tif"], tmp_path / "out")
    assert [(str(file.path), str(file.result)) for file in found] == [
        ("a.svs", "a.svs"), ("a.tif", "a.tif"), ("b/c.png", "b/c"), ("d.zarr", "d"),
    ]  # fmt: skip
    for names, told in ((["x.tif"], "no image x.tif"), (["*.jpg"], "no file fits"), (["out"], "among the images")):
        with pytest.raises(ValueError, match=told):
            list_files(names, tmp_path / "out")
    with pytest.raises(ValueError, match="results of one name"):
        list_files(["a.tif", "out/a.tif"], tmp_path / "elsewhere")


def test_tables_are_whole_where_they_are_piped(capsys, monkeypatch):
    """No name and no percentage is broken in two; on a narrow terminal no percentage is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    classes = [{"name": name, "pixels": pixels, "share": pixels / 100} for name, pixels in (("background", 92), ("pet", 8))]
    fact = {"map": f"out/{'long ' * 30}.tif", "height": 10, "width": 10, "pixel_size": None, "seconds": 1.0, "classes": classes}
    print_summary([fact], [], Path("out/summary.json"))
    text = capsys.readouterr().out
    assert "background 92%, pet 8%" in text
    assert f" {'long ' * 30}.tif" in text
    assert "out/long" not in text
    monkeypatch.setenv("COLUMNS", "80")
    print_summary([fact], [], Path("out/summary.json"))
    text = capsys.readouterr().out
    assert "background 92%, pet 8%" in text
    assert max(map(len, text.splitlines())) <= 80


def test_totals_are_sums():
    facts = [
        {"classes": [{"name": "a", "pixels": 3, "m2": 6.0}, {"name": "b", "pixels": 1, "m2": 2.0}]},
        {"classes": [{"name": "a", "pixels": 1}, {"name": "b", "pixels": 3}]},
    ]
    assert totals(facts[:1])[0] == {"name": "a", "pixels": 3, "share": 0.75, "m2": 6.0}
    assert totals(facts)[1] == {"name": "b", "pixels": 4, "share": 0.5}
    assert totals([]) == []


def write_copies(folder, target, count, repeats):
    image = np.asarray(Image.open(folder / "images" / "photos" / "photo.png"))
    target.mkdir()
    for place in range(count):
        Image.fromarray(np.tile(image, (repeats, repeats, 1))).save(target / f"{place}.png")


def check_rest_is_made(folder, capsys, tmp_path, count, done):
    """What is whole stays, and all else is made."""
    again = records(predict(capsys, folder, tmp_path / "in", "--out", tmp_path / "out", "--json"))
    assert {str(place) for place, fact in enumerate(again) if "done_before" in fact} == done
    names = {f"{place}{ending}" for place in range(count) for ending in (".json", ".png", ".ome.tif")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names | {"summary.json"}


def test_a_batch_that_is_told_to_stop_leaves_only_what_is_whole(folder, capsys, tmp_path, monkeypatch):
    """By SIGTERM while the file of the second map is half written, as at the end of a batch system's time."""
    write_copies(folder, tmp_path / "in", 3, 1)

    def stop(levels, number):
        os.kill(os.getpid(), signal.SIGTERM)
        return iter(())

    monkeypatch.setattr(MapLevels, "tiles", lambda *given: (stop if (tmp_path / "out" / "0.json").exists() else tiles)(*given))
    with pytest.raises(SystemExit) as stopped:
        predict(capsys, folder, tmp_path / "in", "--out", tmp_path / "out")
    monkeypatch.undo()
    assert stopped.value.code == 130
    assert "inline: stopped: the same command goes on after the images that are done" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"0.json", "0.png", "0.ome.tif"}
    check_rest_is_made(folder, capsys, tmp_path, 3, {"0"})


@pytest.mark.slow
def test_a_killed_batch_goes_on(folder, capsys, tmp_path):
    write_copies(folder, tmp_path / "in", 6, 4)
    out = tmp_path / "out"
    words = ["predict", str(tmp_path / "in"), "--model", str(folder / "run"), "--stream", "--out", str(out), "--json"]
    process = subprocess.Popen([sys.executable, "-m", "inline_attention", *words], env=environment(), stdout=subprocess.DEVNULL)
    while not (out / "1.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait(60)
    done = {path.stem for path in out.glob("*.json")}
    assert {"0", "1"} <= done < set("012345")
    check_rest_is_made(folder, capsys, tmp_path, 6, done)


def test_what_does_not_fit_is_one_line(folder, capsys, tmp_path):
    image, run = folder / "images" / "scene.tif", folder / "run"
    base = ("predict", image, "--model", run)
    for words, told in (
        (("--stream", "--side", 64), "--side is not for --stream"),
        (("--stream", "--out", tmp_path / "x.tif", "--shard", "7/3"), "--shard is a number"),
        (("--polygons", tmp_path / "a.geojson"), "--polygons is for --stream with a model that segments"),
        (("--stream", "--out", image), "would be written over an image"),
        (("--stream", "--out", tmp_path / "x.tif", "--probabilities", "float16"), "float16 is for Zarr"),
    ):  # fmt: skip
        assert told in failed(capsys, *base, *words)
    several = (image, folder / "images" / "slide.ome.tif", "--model", run, "--stream", "--out", tmp_path / "x.tif")
    assert "is one file, and there are 2 images" in failed(capsys, "predict", *several)
    assert list(tmp_path.iterdir()) == []
