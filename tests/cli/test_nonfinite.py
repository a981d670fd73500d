"""Numbers that are not finite, in weights, outputs and pixels: every command ends in one line that names where they are."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from inline_attention.explorer.model_cache import ModelCache
from inline_attention.training import evaluate, predict

from ..training.small_dense import detect_recipe, segment_recipe, write_coco, write_maps
from ..training.small_dense import run as train
from .test_main import run


def changed(weights, out, name, value):
    """A copy of a file of weights, with a tensor whose first number is another."""
    state = load_file(weights)
    state[name].view(-1)[0] = value
    with safe_open(weights, "pt") as file:
        save_file(state, out, file.metadata())
    return out


def refused(capsys, *words):
    code, out, err = run(capsys, *map(str, words))
    lines = [line for line in err.splitlines() if line.startswith("inline: ")]
    assert (code, len(lines)) == (2, 1), err
    assert "Traceback" not in err
    assert "nan%" not in out
    return lines[0]


def test_weights_are_refused_by_every_command(trained, tmp_path, capsys):
    bad = changed(trained / "run" / "best.safetensors", tmp_path / "nan.safetensors", "norm.weight", float("nan"))
    image = trained / "data" / "red" / "0.png"
    for words in (
        ["predict", image, "--model", bad],
        ["eval", bad, "--data", trained / "data", "--out", tmp_path / "eval"],
        ["analyze", "rank", bad, "--out", tmp_path / "analysis"],
        ["linearize", bad, "--data", trained / "data", "--out", tmp_path / "linear"],
        ["train", "--recipe", trained / "colours.toml", "--model.weights", bad, "--out", tmp_path / "run"],
    ):
        assert refused(capsys, *words).startswith(f"inline: {bad}: norm.weight holds numbers that are not finite"), words
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match=r"norm\.weight holds"):
        ModelCache([str(bad)])  # of `inline explore`


def test_outputs_that_overflow_name_the_image(trained, tmp_path, capsys):
    """The weights are finite, and their products are not."""
    big = changed(trained / "run" / "best.safetensors", tmp_path / "big.safetensors", "norm.weight", 3e38)
    image, data = trained / "data" / "red" / "0.png", trained / "data"
    said = "gives numbers that are not finite (NaN or infinity) for"
    assert f"{said} {image}: its numbers overflow in float32" in refused(capsys, "predict", image, "--model", big)
    assert f"{said} {data}" in refused(capsys, "eval", big, "--data", data, "--out", tmp_path / "e", "--device", "cpu")
    assert not (tmp_path / "e" / "eval.json").exists()
    assert f"{said} {data}" in refused(capsys, "analyze", "rank", big, "--data", data, "--out", tmp_path / "a")
    with pytest.raises(FloatingPointError, match="for image 1: "):
        predict(big, [Image.new("RGB", (9, 9))] * 2, batch=1, device="cpu")
    with pytest.raises(FloatingPointError, match=r"\.png: its numbers overflow"):
        evaluate(big, data, workers=0, device="cpu")


def test_pixels_name_the_image_and_can_be_skipped(trained, trained_small, tmp_path, capsys):
    bad, good = tmp_path / "bad.tiff", trained / "data" / "red" / "0.png"
    pixels = np.linspace(0, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
    pixels[3, 4] = np.nan
    Image.fromarray(pixels).save(bad)
    said = "it has pixels that are not finite (NaN or infinity)"
    for more, what in (
        ([], said),
        (["--stream"], "the image has pixels that are not finite (NaN or infinity) in rows 0 to 31"),
    ):
        words = ["predict", bad, good, "--model", trained_small, "--json", *more]
        line = refused(capsys, *words)
        assert line.startswith(f"inline: {bad}")
        assert line.endswith(f"{what} (--skip-bad goes on)")
        code, out, err = run(capsys, *map(str, words), "--skip-bad")
        assert (code, [json.loads(line)["image"] for line in out.splitlines()]) == (0, [str(good)])
        assert str(bad) in err
    assert predict(trained_small, [bad, good], skip_bad=True, device="cpu")[0] is None


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_dense_models(task, tmp_path, capsys):
    """A detector would leave out boxes whose scores are not finite, as if there were no objects."""
    if task == "segment":
        data = write_maps(tmp_path / "maps", 4, 2)
        recipe, image = segment_recipe(data, schedule={"steps": 1}), data / "images" / "val" / "1.png"
    else:
        data = write_coco(tmp_path / "coco", 4, 2)
        few = {"epochs": 1, "shape": "cosine", "drops": ()}
        recipe, image = detect_recipe(data, data={"val": "validation"}, schedule=few), data / "val2017" / "1.png"
    train(recipe, tmp_path / "run")
    weights = tmp_path / "run" / "best.safetensors"
    names = [name for name in load_file(weights) if name.endswith("weight")]
    nan = changed(weights, tmp_path / "nan.safetensors", names[-1], float("nan"))
    assert f"{names[-1]} holds numbers that are not finite" in refused(capsys, "predict", image, "--model", nan)
    first = next(name for name in names if ".norm" in name)
    big = changed(weights, tmp_path / "big.safetensors", first, 3e38)
    line = refused(capsys, "predict", image, "--model", big, "--out", tmp_path / "drawn")
    assert f"numbers that are not finite (NaN or infinity) for {image}: " in line
    line = refused(capsys, "eval", big, "--data", data, "--out", tmp_path / "eval", "--device", "cpu", "--workers", "0")
    assert f"numbers that are not finite (NaN or infinity) for {data}" in line
