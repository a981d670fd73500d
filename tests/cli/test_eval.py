"""What a user of `inline eval` and `inline predict` sees."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest
import tifffile
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from inline_attention.large.area_average import average_rows
from inline_attention.large.image_reader import image_for

from ..training.small import write_images
from .test_main import run


def test_eval_of_a_run(trained, capsys):
    code, out, _ = run(capsys, "eval", str(trained / "run"), "--device", "cpu", "--json")
    assert code == 0
    found = json.loads(out)
    result = json.loads((trained / "run" / "result.json").read_text())
    assert found["top1"] == pytest.approx(result["top1"])
    assert found["loss"] == pytest.approx(result["loss"], rel=1e-4)
    assert found["confusion"] == result["confusion"]
    assert found["images"] == 12
    assert found["images_per_second"] > 0
    assert json.loads((trained / "run" / "eval" / "eval.json").read_text()) == found
    code, out, _ = run(capsys, "eval", str(trained / "run"), "--device", "cpu")
    assert re.search(r"split +images +top-1 % +top-5 % +loss +images/s", out)
    assert re.search(r"\n +val +12 ", out)
    assert ", split val (20 % of the images, split off by a hash of the names), fingerprint " in out
    assert "Hardest classes: " in out


def test_eval_scores_the_split_that_is_asked_for(trained, tmp_path, capsys):
    """Of the run's own folder, which has no splits: its own validation and training images, and no test images."""
    words = ("eval", str(trained / "run"), "--device", "cpu", "--workers", "0", "--out", str(tmp_path / "out"))
    own = json.loads(run(capsys, *words, "--data", str(trained / "data"), "--json")[1])
    assert (own["split"], own["images"], own["trained_on"]) == ("val", 12, 0)
    assert own["fingerprint"] == json.loads((trained / "run" / "result.json").read_text())["fingerprint"]
    code, out, _ = run(capsys, *words, "--split", "train")
    assert "48 images of " in out
    assert ", split train, fingerprint " in out
    assert "The run was trained on all of them: this is no measure of other images." in out
    everything = json.loads(run(capsys, *words, "--split", "all", "--json")[1])
    assert (everything["images"], everything["trained_on"], everything["chosen_by"]) == (60, 48, False)
    code, _, err = run(capsys, *words, "--split", "test")
    assert (code, err) == (2, f"inline: {trained / 'data'} has no split test; there are: train, val\n")
    for number, (split, count) in enumerate({"train": 2, "val": 3, "test": 4}.items()):
        write_images(tmp_path / "other" / split, count, seed=number)
    found = {
        split: json.loads(run(capsys, *words, "--data", str(tmp_path / "other"), "--split", split, "--json")[1])
        for split in ("val", "test")
    }
    assert [found[split]["images"] for split in found] == [9, 12]
    assert found["val"]["fingerprint"] != found["test"]["fingerprint"]
    assert json.loads((tmp_path / "out" / "eval.json").read_text())["split"] == "test"


def test_eval_says_that_a_run_was_trained_on_these_images(trained, tmp_path, capsys):
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copytree(trained / "data", tmp_path / "data" / "train")
    write_images(tmp_path / "data" / "val", 2, seed=1)
    recipe = tmp_path / "run" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace(str(trained / "data"), str(tmp_path / "data")))
    words = ("eval", str(tmp_path / "run"), "--device", "cpu", "--workers", "0")
    code, out, err = run(capsys, *words, "--data", str(tmp_path / "data" / "train"))
    assert code == 0, err
    assert ", split all, " in out
    assert "The run was trained on all of them" in out


def test_eval_on_other_images_and_crop_modes(trained, tmp_path, capsys):
    """A folder of class folders, one class missing; a file of weights; a rectangle; timm's usual view."""
    write_images(tmp_path / "others", 7, seed=5, classes=("red", "green"), size=(40, 20))
    words = (
        "eval",
        str(trained / "run" / "best.safetensors"),
        "--data",
        str(tmp_path / "others"),
        "--out",
        str(tmp_path / "out"),
    )
    code, out, _ = run(
        capsys, *words, "--crop-mode", "center", "--size", "20", "28", "--device", "cpu", "--json", "--batch", "3"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["images"], found["crop_mode"], found["size"]) == (14, "center", [20, 28])
    assert found["per_class"][0] is None
    assert found["top1"] > 80
    assert (tmp_path / "out" / "confusion.png").stat().st_size > 1000


def test_eval_of_the_authors_files(tmp_path, capsys):
    """A pickle with the authors' names, on folders called as ImageNet's are."""
    from ..models.published import official

    wnids = timm.data.ImageNetInfo().label_names()
    for wnid in wnids[:3]:
        (tmp_path / "val" / wnid).mkdir(parents=True)
        Image.new("RGB", (30, 20), (9, 9, 9)).save(tmp_path / "val" / wnid / "a.png")
    torch.save({"model": official("inline_deit_tiny")}, tmp_path / "inline_deit_t.pth")
    words = ("--data", str(tmp_path / "val"), "--out", str(tmp_path / "out"), "--device", "cpu", "--json", "--workers", "0")
    code, out, err = run(capsys, "eval", str(tmp_path / "inline_deit_t.pth"), *words)
    assert code == 0, err
    found = json.loads(out)
    assert (found["model"], found["images"], found["crop_mode"], found["crop"]) == ("inline_deit_tiny", 3, "squash", 0.875)
    assert all(share is not None for share in found["per_class"][:3])
    assert all(share is None for share in found["per_class"][3:])
    named = run(capsys, "eval", "inline_deit_tiny", "--weights", str(tmp_path / "inline_deit_t.pth"), *words)
    assert json.loads(named[1])["loss"] == found["loss"]
    assert json.loads(named[1])["reported"] is None, "a file that is named may be of another training"
    published = ("inline_deit_tiny", "--pretrained", "--weights", str(tmp_path))
    assert json.loads(run(capsys, "eval", *published, *words)[1])["loss"] == found["loss"]
    _, out, _ = run(capsys, "eval", *published, *(word for word in words if word != "--json"))
    assert "Reported by the paper for ImageNet-1K's 50,000 validation images: 74.5 % top-1" in out
    photo = str(tmp_path / "val" / wnids[0] / "a.png")
    _, out, _ = run(capsys, "predict", photo, "--model", *published)
    info = timm.data.ImageNetInfo()
    names = {info.index_to_description(index) for index in range(1000)}
    assert {line.split("%  ")[1] for line in out.splitlines()[1:]} < names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["eval", "nowhere"], "inline: nowhere is neither a run's folder, nor a file, nor a model"),
        (["eval", "inline_swin_tiny"], "inline: inline_swin_tiny needs weights: --weights FILE, or --pretrained for its"),
        (["eval", "inline_pvt_nano"], "inline: inline_pvt_nano needs weights: --weights FILE (none are published for it)"),
        (["eval", "inline_pvt_nano", "--pretrained"], "inline: inline_pvt_nano has no published weights"),
        (["eval", "inline_deit_nano", "--pretrained"], "inline: inline_deit_nano has no published weights, but "),
        (["eval", "RUN", "--pretrained"], "inline: pretrained is for a model that is named, and RUN has its own: leave"),
        (["eval", "RUN", "--weights", "DATA"], "inline: weights DATA is for a model that is named, and RUN has its own"),
        (["eval", "inline_deit_tiny", "--pretrained", "--ema"], "inline: ema: inline_deit_tiny has no file to take an average"),
        (["eval", "inline_deit_nano.digits", "--pretrained", "--weights", "DATA"], "inline: pretrained and weights DATA: "),
        (["eval", "inline_swin_tiny", "--weights", "nowhere"], "inline: there is no file nowhere"),
        (["eval", "RUN/best.safetensors"], "inline: RUN/best.safetensors does not record which images: give data"),
        (["eval", "RUN", "--data", "digits"], "inline: digits has 10 classes, and RUN knows 3"),
        (["eval", "RUN", "--batch", "0"], "inline: --batch must be positive, got 0"),
        (["eval", "DATA"], "inline: DATA holds no best.safetensors: no run, or one that was stopped"),
        (["eval", "RUN/cut.safetensors", "--data", "DATA"], "inline: RUN/cut.safetensors cannot be read as "),
        (["predict", "nowhere", "--model", "RUN"], "inline: there is no image nowhere"),
        (["predict", "DATA/text", "--model", "RUN"], "inline: DATA/text holds no images"),
        (["predict", "--model", "RUN"], "inline: no images: give files, folders, or '-' for the standard input"),
        (["predict", "RUN/recipe.toml", "--model", "RUN"], "inline: RUN/recipe.toml cannot be read: not an image (--skip-bad"),
        (["predict", "DATA", "--model", "RUN", "--top", "0"], "inline: --batch and --top must be positive, got 16 and 0"),
    ],
)  # fmt: skip
def test_mistakes_of_eval_and_predict_end_in_one_line(trained, capsys, words, message):
    whole = (trained / "run" / "best.safetensors").read_bytes()
    (trained / "run" / "cut.safetensors").write_bytes(whole[:1000])
    (trained / "data" / "text").mkdir(exist_ok=True)

    def there(text):
        return text.replace("RUN", str(trained / "run")).replace("DATA", str(trained / "data"))

    code, _, err = run(capsys, *map(there, words))
    (trained / "data" / "text").rmdir()
    assert code == 2, err
    assert err.startswith(there(message)), err
    assert err.count("\n") == 1


def test_predict_files_folders_and_the_standard_input(trained, capsys, monkeypatch, tmp_path):
    red = trained / "data" / "red" / "0.png"
    model = ("--model", str(trained / "run"))
    code, out, _ = run(capsys, "predict", str(red), *model, "--top", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == str(red)
    assert lines[1].split()[-1] == "red"
    assert len(lines) == 3
    code, out, _ = run(capsys, "predict", str(trained / "data" / "red"), *model, "--json", "--batch", "3")
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 20
    assert sum(row["classes"][0]["name"] == "red" for row in rows) >= 18
    assert sum(entry["probability"] for entry in rows[0]["classes"]) == pytest.approx(1)
    for data in (red.read_bytes(), f"{red}\n\n".encode()):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code, out, _ = run(capsys, "predict", "-", *model, "--json")
        for found, before in zip(json.loads(out)["classes"], rows[0]["classes"], strict=True):
            assert found == {"name": before["name"], "probability": pytest.approx(before["probability"], rel=1e-5)}
    (tmp_path / "bad.png").write_text("no")
    code, out, err = run(capsys, "predict", str(tmp_path / "bad.png"), str(red), *model, "--skip-bad", "--json")
    assert code == 0
    assert json.loads(out)["image"] == str(red)
    assert err.splitlines() == [
        f"inline: {tmp_path / 'bad.png'} cannot be read: not an image",
        "inline: 1 images could not be read",
    ]


def test_eval_wants_the_classes_that_the_model_knows(trained, tmp_path, capsys):
    """As many classes with other names are other classes."""
    for split in ("train", "val"):
        for colour, name in zip(("red", "green", "blue"), ("ant", "bee", "zebra"), strict=True):
            write_images(tmp_path / "x", 2, classes=(colour,))
            (tmp_path / "others" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "x" / colour).rename(tmp_path / "others" / split / name)
    code, _, err = run(capsys, "eval", str(trained / "run"), "--data", str(tmp_path / "others"))
    assert code == 2
    assert err.endswith(f"has a class 'ant', and {trained / 'run'} knows others: blue, green, red\n")
    code, _, err = run(capsys, "eval", str(trained / "run"), "--data", str(tmp_path / "others" / "val"))
    assert code == 2
    assert err.endswith("has an unknown class 'ant'; the classes are: blue, green, red\n")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"model": "hf-hub:someone/model", "arguments": {}}, "asks for 'hf-hub:someone/model': refused"),
        ({"model": "inline_swin_nano", "arguments": {"checkpoint_path": "/etc/passwd"}}, "asks for 'checkpoint_path': refused"),
        ({"model": "inline_swin_nano", "arguments": {"pretrained": True}}, "asks for 'pretrained': refused"),
        ({"model": "inline_swin_nano"}, "does not say with which arguments its model is made"),
        (
            {"model": "inline_swin_nano", "arguments": {"num_classes": 3}, "data": {"fish": 3}},
            "weights.safetensors: unknown key data.fish",
        ),
    ],
)
def test_metadata_of_a_file_opens_no_other_file(tmp_path, capsys, facts, message):
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model("inline_swin_nano", num_classes=3).state_dict(), file, {"inline": json.dumps(facts)})
    code, _, err = run(capsys, "eval", str(file), "--data", str(tmp_path))
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_names_of_classes_are_as_many_as_the_classes(trained, tmp_path, capsys):
    weights, file = trained / "run" / "best.safetensors", tmp_path / "names.safetensors"
    with safe_open(weights, "pt") as opened:
        facts = json.loads(opened.metadata()["inline"])
    for names, said in (
        ([*facts["classes"], "grey"], "names 4 classes, and the model has 3: give one name for each"),
        (["red", "red", "blue"], "the classes 0 and 1 are both called 'red': rename one"),
    ):
        save_file(load_file(weights), file, {"inline": json.dumps({**facts, "classes": names})})
        code, _, err = run(capsys, "predict", str(trained / "data" / "red" / "0.png"), "--model", str(file))
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"inline: {file}")
        assert err.strip().endswith(said)


def test_predict_streams_images_at_their_own_size(capsys, tmp_path):
    model = timm.create_model("inline_deit_nano", num_classes=3)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (45, 70, 3), dtype=np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    named = ("--model", "inline_deit_nano", "--weights", str(tmp_path / "a.safetensors"), "--json")
    code, out, err = run(capsys, "predict", str(tmp_path / "a.npy"), str(tmp_path / "a.png"), "--stream", *named)
    assert code == 0, err
    array, image = (json.loads(line)["classes"] for line in out.splitlines())
    assert array == image
    with torch.no_grad():
        expected = model.eval()(image_for(model, pixels).read(0, 45)).softmax(1)[0]
    assert max(c["probability"] for c in array) == pytest.approx(float(expected.max()), rel=1e-4)
    code, out, err = run(capsys, "predict", str(tmp_path), "--stream", *named)
    assert [json.loads(line)["image"] for line in out.splitlines()] == [str(tmp_path / name) for name in ("a.npy", "a.png")]
    code, _, err = run(capsys, "predict", str(tmp_path / "b.png"), "--stream", *named)
    assert (code, err) == (2, f"inline: there is no image {tmp_path / 'b.png'}\n")
    np.save(tmp_path / "bad.npy", pixels.astype(np.float32))
    bad = str(tmp_path / "bad.npy")
    code, out, err = run(capsys, "predict", bad, str(tmp_path / "a.png"), "--stream", "--skip-bad", *named)
    assert (code, len(out.splitlines())) == (0, 1)
    assert err.startswith(f"inline: {bad}: floating-point pixels must be from 0 to 1, got 0 to 255")
    for more, said in (
        (["--stream"], f"inline: {bad}: floating-point pixels must be from 0 to 1"),
        (["--mpp", "2"], "inline: --mpp 2.0 is how --stream reads its files: give --stream too"),
        (["--folder", str(tmp_path)], f"inline: --folder {tmp_path} is where --stream works: give --stream too"),
        (["--stream", "--folder", "/nowhere"], "inline: there is no folder /nowhere"),
    ):
        code, _, err = run(capsys, "predict", bad, *more, *named)
        assert (code, err.count("\n")) == (2, 1), err
        assert err.startswith(said)


def test_predict_streams_a_level_a_pixel_size_and_channels_of_a_file(capsys, tmp_path):
    """The file has five channels, two levels, and pixels of 0.5 micrometres."""
    model = timm.create_model("inline_deit_nano", num_classes=3)
    save_file(model.state_dict(), tmp_path / "a.safetensors")
    pixels = np.random.default_rng(0).integers(0, 256, (96, 128, 5), dtype=np.uint8)
    options = {"photometric": "minisblack", "planarconfig": "contig", "tile": (32, 32)}
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(pixels, subifds=1, resolution=(20000, 20000), resolutionunit=3, **options)
        writer.write(pixels[1::2, 1::2], subfiletype=1, **options)
    named = ("--stream", "--model", "inline_deit_nano", "--weights", str(tmp_path / "a.safetensors"), "--json")
    mask = torch.zeros(1, 96, 128, dtype=torch.bool)
    mask[:, 30:50, 60:90] = True
    Image.fromarray(mask[0].numpy()).save(tmp_path / "mask.png")
    averaged = average_rows(torch.from_numpy(pixels[:, :, :3] / 255), 0, 64, (96, 128), (64, 85))
    for words, expected in (
        (["--channels", "4,0,1"], pixels[:, :, [4, 0, 1]]),
        (["--channels", "0,1,2", "--level", "1"], pixels[1::2, 1::2, :3]),
        (["--channels", "0,1,2", "--mpp", "1"], pixels[1::2, 1::2, :3]),
        (["--channels", "0,1,2", "--mpp", "0.75"], averaged.numpy()),
        (["--channels", "0,1,2", "--mask", str(tmp_path / "mask.png")], pixels[:, :, :3]),
        (["--channels", "0,1,2", "--value-range", "0,127.5"], np.minimum(pixels[:, :, :3] / 127.5, 1)),
    ):
        code, out, err = run(capsys, "predict", str(tmp_path / "a.tif"), *words, *named)
        assert code == 0, err
        rows = image_for(model.eval(), expected)
        with torch.no_grad():
            best = model(rows.read(0, rows.height), mask if "--mask" in words else None).softmax(1).max()
        assert json.loads(out)["classes"][0]["probability"] == pytest.approx(float(best), rel=1e-4)
    for words, said in (
        ([], f"{tmp_path / 'a.tif'}: the image has 5 channels, 0, 1, 2, 3, 4, but the model's input has 3"),
        (["--channels", "0,1,9"], f"cannot read the image {tmp_path / 'a.tif'}: there is no channel 9: it has 0, 1, 2, 3, 4"),
        (["--channels", "0,,2"], "--channels is numbers or names with commas between, such as 0,1,2, got '0,,2'"),
        (["--value-range", "7"], "--value-range is two numbers with a comma between, such as 0,3000, got '7'"),
        (["--mask", "nodata"], f"cannot read the image {tmp_path / 'a.tif'}: it has no mask of its own"),
        (["--mpp", "0.1"], f"cannot read the image {tmp_path / 'a.tif'}: mpp 0.1 is finer than the image"),
    ):
        code, _, err = run(capsys, "predict", str(tmp_path / "a.tif"), *words, *named)
        assert (code, err.count("\n")) == (2, 1), err
        assert said in err


def test_an_image_that_a_model_cannot_stream_is_one_line(tmp_path, capsys):
    arguments = {"depth": 1, "mixer": "softmax", "num_classes": 3}
    facts = json.dumps({"model": "inline_deit_nano", "arguments": arguments, "classes": ["blue", "green", "red"]})
    save_file(timm.create_model("inline_deit_nano", **arguments).state_dict(), tmp_path / "a.safetensors", {"inline": facts})
    Image.new("RGB", (260, 260)).save(tmp_path / "a.png")
    code, _, err = run(capsys, "predict", str(tmp_path / "a.png"), "--model", str(tmp_path / "a.safetensors"), "--stream")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"inline: {tmp_path / 'a.png'}: stream needs blocks that take an image in parts")
    assert "stages.0.blocks.0 is SoftmaxAttention over the whole map, here of 16,900 tokens, and can have 16,384" in err
