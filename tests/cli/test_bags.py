"""Slides from tile features as a user meets them: features, train, eval, predict, and what is said of bad input."""

import json
import re

import numpy as np
import pytest
import tifffile

from inline_attention.cli.main import main
from inline_attention.data.bag_file import read_bag

from ..data.bags import write_slides

SMALL = ["--model.args", "patch_size=1, embed_dim=8, depth=1, num_heads=2", "--data.size", "8", "8", "--run.log", "1"]
SHORT = ["--schedule.epochs", "1", "--schedule.warmup", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_slides(tmp_path_factory.mktemp("slides"))


@pytest.fixture(scope="module")
def run_folder(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bags") / "run"
    root, table = data
    main(
        ["train", "--data", str(root), "--labels", str(table), "--data.columns", "label", "--out", str(folder), *SMALL, *SHORT]
    )
    return folder


def said(capsys, *words):
    try:
        main(list(words))
        code = 0
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_has_curves_and_a_drawing_of_the_attention(run_folder):
    names = {file.name for file in run_folder.iterdir()}
    assert {"best.safetensors", "metrics.csv", "curve.png", "confusion.png", "attention.png", "result.json"} <= names
    assert (run_folder / "metrics.csv").read_text().splitlines()[0].startswith("epoch,step,lr,train_loss,balanced,accuracy,auc")
    recipe = (run_folder / "recipe.toml").read_text()
    assert "batch = 2\n" in recipe  # fitted to ten slides
    assert 'target = "class"' in recipe


def test_eval_of_the_run_and_of_other_slides(capsys, data, run_folder, tmp_path):
    code, out, err = said(capsys, "eval", str(run_folder), "--out", str(tmp_path / "a"), "--device", "cpu")
    assert code == 0, err
    assert "balanced %" in out
    assert "2 slides of" in out
    assert "by these very slides" in out
    root, table = write_slides(tmp_path / "other", slides=4, seed=1)
    words = ["eval", str(run_folder), "--data", str(root), "--labels", str(table), "--json", "--out", str(tmp_path / "b")]
    code, out, err = said(capsys, *words, "--columns", "label", "--device", "cpu")
    assert code == 0, err
    found = json.loads(out)
    assert (found["images"], found["classes"], found["split"]) == (4, ["a", "b"], "all")
    assert np.sum(found["confusion"]) == 4
    assert said(capsys, "eval", str(run_folder), "--labels", str(table))[2] == (
        f"inline: labels {table} are those of the slides in `data`: give data too\n"
    )


def test_predict_with_maps_of_attention(capsys, data, run_folder, tmp_path):
    words = ["predict", str(data[0] / "s1.h5"), str(data[0] / "s3.h5"), "--model", str(run_folder)]
    code, out, err = said(capsys, *words, "--json", "--attention", "--out", str(tmp_path))
    assert code == 0, err
    facts = [json.loads(line) for line in out.splitlines()]
    assert [fact["tiles"] for fact in facts] == [15, 21]
    assert sum(entry["probability"] for entry in facts[0]["classes"]) == pytest.approx(1, abs=1e-5)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s1.geojson", "s1.png", "s3.geojson", "s3.png"]
    features = json.loads((tmp_path / "s3.geojson").read_text())["features"]
    bag = read_bag(data[0] / "s3.h5")
    assert [feature["geometry"]["coordinates"][0][0] for feature in features] == bag.coords.tolist()
    code, out, err = said(capsys, *words, "--top", "1")
    assert re.fullmatch(r"\S+/s1.h5: 15 tiles\n +\d+.\d\d%  [ab]\n\S+/s3.h5: 21 tiles\n +\d+.\d\d%  [ab]\n", out)


def test_a_dry_run_says_what_training_takes(capsys, data):
    words = ["train", "--data", str(data[0]), "--labels", str(data[1]), "--data.columns", "mean", "--dry-run", *SMALL, *SHORT]
    code, out, err = said(capsys, *words)
    assert code == 0, err
    assert "10 images, batches of 2 in 2 micro-batches of 1" in out
    assert re.search(r"about \d+ MB", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--data", "DATA"], "has s0.h5, not class folders: --task bags --labels FILE.csv"),
        (["train", "--labels", "TABLE"], "--task bags needs tile features: --data DIR"),
        (["train", "--task", "bags", "--data", "DATA"], "needs a table with the labels of its slides: --labels FILE.csv"),
        (["train", "--data", "DATA", "--labels", "/nowhere.csv"], "/nowhere.csv cannot be read: No such file or directory"),
        (["train", "--data", "DATA", "--labels", "TABLE", "--task", "classify"], "DATA has s0.h5, not class folders"),
        (["train", "--data", "DATA", "--labels", "TABLE", "--augment.mixup", "1"], "mixup has no meaning for --task bags"),
        (
            ["train", "--data", "DATA", "--labels", "TABLE", "--data.columns", "high", "--model.args", "patch_size=2"],
            "patch_size is 2",
        ),
        (["eval", "RUN", "--crop", "0.5"], "--crop is for models of images: leave it out"),
        (["eval", "RUN", "--split", "test"], "has no split test"),
        (["predict", "FILE", "--model", "RUN", "--stream"], "--stream is for models of images: leave it out"),
        (["predict", "FILE", "--model", "RUN", "--layer", "1"], "--out and --layer are for the maps of --attention"),
        (["predict", "FILE", "--model", "RUN", "--attention", "--layer", "7"], "there is no layer 7"),
        (["predict", "TABLE", "--model", "RUN"], "is no file of tile features"),
        (["predict", "/nowhere.h5", "--model", "RUN"], "there is no file /nowhere.h5"),
        (["export", "RUN"], "is a model for bags of tiles"),
        (["analyze", "maps", "RUN"], "is a model for bags of tiles: this works with models that classify"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(capsys, data, run_folder, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    names = {"DATA": data[0], "TABLE": data[1], "RUN": run_folder, "FILE": data[0] / "s1.h5"}
    code, _, err = said(capsys, *(str(names.get(word, word)) for word in words))
    assert code == 2, err
    assert message.replace("DATA", str(data[0])) in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.fixture
def slide(tmp_path):
    """A white slide with a square of tissue, at 0.5 micrometres a pixel."""
    pixels = np.full((200, 260, 3), 240, np.uint8)
    pixels[40:120, 64:160] = np.random.default_rng(0).integers(60, 200, (80, 96, 3)) * np.array([1, 0.4, 0.8])
    resolution = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(tmp_path / "slide.tif", pixels, tile=(64, 64), photometric="rgb", **resolution)
    return tmp_path / "slide.tif"


def test_features_of_a_slide_are_a_bag(capsys, slide, tmp_path):
    words = ["features", str(slide), "--model", "inline_deit_nano.digits", "--tile", "16", "--out", str(tmp_path / "out")]
    code, out, err = said(capsys, *words, "--json", "--mpp", "1")
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["channels"], facts["all_tiles"]) == (96, 7 * 9)
    bag = read_bag(tmp_path / "out" / "slide.h5")
    assert (bag.tile, bag.moved, len(bag.features)) == (32, 0, facts["tiles"])
    inside = (bag.coords[:, 0] >= 32) & (bag.coords[:, 0] < 160) & (bag.coords[:, 1] >= 32) & (bag.coords[:, 1] < 128)
    assert inside.all()
    assert len(bag.features) >= 6
    assert json.loads(said(capsys, *words, "--json", "--mpp", "1")[1])["done_before"]
    code, out, _ = said(capsys, *words, "--mask", "none")
    assert (code, "221 of 221 tiles have tissue" in out) == (0, True)  # other settings: made again
    code, _, err = said(capsys, "features", str(tmp_path / "none.tif"), *words[1:])
    assert (code, err.splitlines()[-1]) == (2, f"inline: there is no image {tmp_path / 'none.tif'}")
    (tmp_path / "bad.tif").write_bytes(slide.read_bytes()[:300])
    code, out, err = said(capsys, "features", str(tmp_path / "bad.tif"), *words[1:])
    assert (code, err.splitlines()[-1]) == (2, "inline: 1 of 2 images failed, named above")
    assert "slide.h5" in out
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["slide.h5"]


def test_wrong_options_of_features(capsys, slide, tmp_path):
    base = ["features", str(slide), "--out", str(tmp_path / "a.h5"), "--model", "inline_deit_nano.digits"]
    for words, message in (
        (["--tile", "0"], "--batch and --tile must be positive, got 32 and 0"),
        (["--tissue", "2"], "--tissue must be within 0..1, got 2"),
        (["--channels", "0"], "the model takes 3 channels, and the image has 1"),
        (["--args", "depth=1"], "--args 'depth=1' is for a model that is named, with --weights"),
        (["--shard", "9/3"], "--shard is a number and"),
    ):
        code, _, err = said(capsys, *base, *words)
        assert (code, message in err.splitlines()[-1]) == (2, True), err
    code, _, err = said(capsys, "features", str(slide), "--model", "vit_tiny_patch16_224", "--out", str(tmp_path / "a.h5"))
    assert "needs weights" in err
    assert not (tmp_path / "a.h5").exists()
