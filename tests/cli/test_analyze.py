"""What a user of `inline analyze` sees."""

import json
import re

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.maps import query_map
from inline_attention.cli.main import main
from inline_attention.data.transforms import normalisation
from inline_attention.large import valid_point
from inline_attention.large.large_image import LargeImage
from inline_attention.large.numpy_file import ArrayFile
from inline_attention.training.load_trained import make_named

from .test_main import run

NAMES = ["inline_deit_nano", "vit_tiny_patch16_224"]
COMMANDS = ["maps", "rays", "confusion", "locality", "masking", "rank", "report"]
FIGURES = {
    "maps": ["maps", "maps-run", "heads-run"],
    "rays": ["rays"],
    "confusion": ["confusion"],
    "locality": ["locality"],
    "masking": ["masking"],
    "rank": ["rank"],
    "report": ["rays", "confusion", "maps", "locality", "rank", "masking"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_analysed(command, trained, tmp_path, capsys, monkeypatch):
    """A table, JSON and images, of the run's own validation set."""
    words = ["analyze", command, str(trained / "run"), "--out", str(tmp_path / "out"), "--count", "5"]
    words += ["--sizes", "3"] if command == "masking" else []
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert "Written: " in out
    numbers = json.loads((tmp_path / "out" / f"{command}.json").read_text())
    assert numbers
    for name in FIGURES[command]:
        with Image.open(tmp_path / "out" / f"{name}.png") as figure:
            assert min(figure.size) > 200
    monkeypatch.setattr(Figure, "savefig", lambda self, *arguments, **options: None)  # drawn and checked above
    code, out, _ = run(capsys, *words, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "out" / f"{command}.json").read_text()), "the same numbers again"


def test_models_by_name_are_untrained_and_get_samples(tmp_path, capsys):
    code, out, err = run(capsys, "analyze", "locality", *NAMES, "--out", str(tmp_path), "--count", "1", "--sizes", "3")
    assert code == 0, err
    assert "inline_deit_nano (untrained): weight around the query" in out
    assert "6: stage 0, block 5" in out
    assert "1 images of sample images" in out
    found = json.loads((tmp_path / "locality.json").read_text())["models"]
    assert [len(layers) for layers in found.values()] == [6, 12]


def test_rays_without_models_are_the_papers_figure(tmp_path, capsys):
    code, _, err = run(capsys, "analyze", "rays", "--out", str(tmp_path))
    assert code == 0, err
    found = json.loads((tmp_path / "plane.json").read_text())["rays"]
    assert [(ray["title"], ray["confused_by_head"]) for ray in found] == [
        ("softmax", [0]),
        ("linear, ReLU", [6]),
        ("InLine", [0]),
    ]
    assert (tmp_path / "plane.png").stat().st_size > 10_000


def test_maps_of_a_streamed_file_are_those_of_the_image(tmp_path, capsys):
    """The file is read in blocks and the tokens come in bands; in the memory of one image, the dense rows are the same."""
    pixels = np.random.default_rng(0).integers(0, 256, (96, 160, 3), dtype=np.uint8)
    np.save(tmp_path / "image.npy", pixels)
    words = ["--image", tmp_path / "image.npy", "--stream", "--point", 0.3, 0.8, "--layers", 2, "--out", tmp_path]
    main(["analyze", "maps", "inline_pvt_nano", *map(str, words)])
    (found,) = json.loads((tmp_path / "maps.json").read_text())["models"]["inline_pvt_nano (untrained)"]["layers"]
    trained = make_named("inline_pvt_nano", seed=0)
    mean, std = (torch.tensor(part) for part in normalisation(trained.data))
    image = ((torch.from_numpy(pixels) / 255 - mean) / std).permute(2, 0, 1)[None]
    with torch.no_grad():
        layer = capture_pass(trained.model, image)[1]
    expected = query_map(layer, layer.place((0.3, 0.8)))
    torch.testing.assert_close(torch.tensor(found["global"]), expected.mixed[0], rtol=1e-3, atol=1e-6)
    assert (tmp_path / "maps-inline_pvt_nano--untrained.png").is_file()


def test_a_point_without_data_is_refused_with_the_nearest(tmp_path, capsys):
    """Before any model runs. The point that is named has data."""
    rasterio = pytest.importorskip("rasterio")
    pixels = np.full((3, 64, 96), 90, dtype=np.uint8)
    pixels[:, :40, :30] = 0
    profile = {"driver": "GTiff", "height": 64, "width": 96, "count": 3, "dtype": "uint8", "nodata": 0, "crs": "EPSG:32633"}
    transform = rasterio.Affine(2.0, 0.0, 400_000.0, 0.0, -2.0, 5_000_000.0)
    with rasterio.open(tmp_path / "scene.tif", "w", **profile, transform=transform) as file:
        file.write(pixels)
    words = ["analyze", "maps", "inline_pvt_nano", "--image", tmp_path / "scene.tif", "--stream", "--out", tmp_path, "--point"]
    code, _, err = run(capsys, *map(str, words), "0.1", "0.2")
    assert code == 2
    assert err == "inline: the point 0.1 0.2 holds no data or is masked: the nearest that can be taken is 0.10 0.32\n"
    assert not list(tmp_path.glob("*.json"))
    run(capsys, *map(str, words), "0.10", "0.32")
    assert (tmp_path / "maps.json").is_file()


@pytest.mark.parametrize(("pixel", "nearest"), [((5, 5), (9, 6)), ((20, 0), (9, 6)), ((39, 11), (39, 11))])
def test_the_nearest_pixel_with_data(pixel, nearest, monkeypatch):
    monkeypatch.setattr(valid_point, "ROWS_AT_ONCE", 2)
    mask = np.zeros((40, 12), dtype=bool)
    mask[9, 6] = mask[39, 11] = True
    image = LargeImage(ArrayFile(np.ones((40, 12), dtype=np.uint8)), mask=RowsOf(mask))
    assert valid_point.nearest_with_data(image, pixel) == nearest
    image = LargeImage(ArrayFile(np.ones((40, 12), dtype=np.uint8)), mask=RowsOf(np.zeros((40, 12), dtype=bool)))
    assert valid_point.nearest_with_data(image, pixel) is None


class RowsOf:
    """A mask in memory."""

    def __init__(self, mask):
        self.mask = torch.from_numpy(mask)

    def rows(self, start, stop):
        return self.mask[start:stop]

    def may_have(self, start, stop):
        return bool(self.mask[start:stop].any())


def test_maps_of_a_file_head_and_layers(trained, tmp_path, capsys):
    Image.new("L", (31, 17), 90).save(tmp_path / "grey.png")
    words = ["analyze", "maps", str(trained / "run"), "--image", str(tmp_path / "grey.png"), "--point", "0.1", "0.9"]
    words += ["--layers", "1", "4", "--head", "1", "--out", str(tmp_path)]
    code, _, err = run(capsys, *words)
    assert code == 0, err
    found = json.loads((tmp_path / "maps.json").read_text())["models"]["run"]["layers"]
    assert [layer["layer"] for layer in found] == ["stages.0.blocks.0.mixer", "stages.3.blocks.0.mixer"]
    grid = found[0]["grid"]
    assert found[0]["query"] == [int(0.1 * grid[0]), int(0.9 * grid[1])]
    assert len(found[0]["global"][0]) == grid[0]


def test_a_report_is_one_file_that_says_what_it_shows(trained, tmp_path, capsys):
    words = ["analyze", "report", str(trained / "run"), str(trained / "run" / "best.safetensors"), "--names", "A <b>", "B"]
    code, out, err = run(capsys, *words, "--out", str(tmp_path), "--count", "4", "--masked", "8")
    assert code == 0, err
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 6
    assert "A &lt;b&gt;" in page
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!data:)", page), "nothing is fetched"
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert [model["label"] for model in numbers["models"]] == ["A <b>", "B"]
    first, second = numbers["models"]
    assert first["confusion"] == second["confusion"], "the same weights"
    for finding in numbers["findings"].values():
        assert finding["says"] in out.replace("\n", " ")
        assert finding["says"].replace("<", "&lt;").replace(">", "&gt;") in page.replace("&#x27;", "'")
    assert numbers["findings"]["confusion"]["verdict"] == "undecided"


def test_a_report_of_one_model_describes_it(trained, tmp_path, capsys):
    words = ["analyze", "report", str(trained / "run"), "--out", str(tmp_path), "--count", "4", "--masked", "8"]
    code, out, err = run(capsys, *words)
    assert code == 0, err
    out = out.replace("\n", " ")
    assert "ndecided" not in out
    assert "this needs" not in out
    assert re.search(r"run confuses [\d.]+ % \((few|some|many)\), at a tolerance of 0\.01\. Few is good: 0\.05 % or less", out)
    assert "The length of a query" in out
    assert "To compare it, and to hold it against the paper, give two or more." in out
    assert all(line in err for line in ("reading up to 8 images", "drawing figures")), "a log says what takes time"
    page = (tmp_path / "report.html").read_text()
    assert "ndecided" not in page
    assert "The paper:" not in page
    found = json.loads((tmp_path / "report.json").read_text())["findings"]
    assert {finding["verdict"] for finding in found.values()} == {None}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["confusion"], "no model: give runs' folders"),
        (["confusion", "inline_deit_nono"], "inline_deit_nono is neither a run's folder, nor a file, nor a model"),
        (["confusion", "inline_deit_nano", "inline_deit_nano"], "inline_deit_nano is given more than once"),
        (["confusion", "inline_deit_nano", "--tolerance", "2"], "--tolerance must be between 0 and 1, got 2.0"),
        (["confusion", "resnet18"], "no attention over the image was found in ResNet"),
        (["maps", "inline_deit_nano", "--head", "9"], "--head 9: inline_deit_nano (untrained) has"),
        (["maps", "inline_deit_nano", "--layers", "77"], "--layers 77: the model has 6 layers"),
        (["maps", "inline_deit_nano", "--point", "0.5", "1.5"], "--point is two shares of the image"),
        (["maps", "inline_deit_nano", "--image", "/nowhere.png"], "/nowhere.png is neither a file nor a sample"),
        (["maps", "inline_deit_nano", "--stream"], "--stream takes a file: give --image FILE"),
        (["maps", "inline_deit_nano", "--level", "1"], "--level 1 is how --stream reads its files: give --stream too"),
        (["locality", "inline_deit_nano", "--sizes", "4"], "a window around a token has an odd side, got 4"),
        (["masking", "inline_deit_nano"], "masking needs images with classes"),
        (["rank", "inline_deit_nano", "--count", "0"], "--count must be positive, got 0"),
        (["rank", "inline_deit_nano", "--device", "abacus"], "unknown device 'abacus'"),
        (["report", "inline_deit_nano", "--names", "a", "b"], "--names must name each of the 1 models once"),
    ],
)
def test_mistakes_end_in_one_line(words, said, tmp_path, capsys):
    code, _, err = run(capsys, "analyze", *words, "--out", str(tmp_path / "out"))
    assert code == 2
    lines = [line for line in err.splitlines() if line.startswith("inline: ")]
    assert len(lines) == 1, err
    assert lines[0].startswith(f"inline: {said}")
    assert "Traceback" not in err


def test_a_bad_image_is_named(tmp_path, capsys):
    (tmp_path / "no.png").write_bytes(b"no image")
    code, _, err = run(
        capsys, "analyze", "maps", "inline_deit_nano", "--image", str(tmp_path / "no.png"), "--out", str(tmp_path)
    )
    assert code == 2
    assert err.strip().endswith("no.png cannot be read: not an image")
