"""`inline predict --onnx`: what `inline predict` tells, on a machine that has onnxruntime, numpy and pillow, and no torch."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from inline_attention.cli.predict import Predict
from inline_attention.cli.predict_exported import NOT_FOR_FILES, PredictExported, PredictOnnx, PredictOpenVino
from inline_attention.data.config import DataConfig
from inline_attention.lite.description import read_description
from inline_attention.training.load_trained import Trained

from ..lite.exported import CLASSES, description, graph, matrix, write, write_ir
from ..lite.test_segmenter import about as segmenter_description
from ..lite.test_segmenter import graph as segmenter_graph
from .test_main import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """An exported model, and images of several sizes."""
    folder = tmp_path_factory.mktemp("exported")
    write(folder)
    (folder / "images" / "more").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name, size in (("a.png", (40, 50)), ("b.JPG", (31, 20)), ("more/c.jpeg", (64, 64)), ("d.bmp", (8, 8))):
        Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / "images" / name)
    return folder


def expected(folder: Path, image: Path) -> dict[str, float]:
    """What onnxruntime says in this process."""
    transform = read_description(folder / "model.onnx.json").transform
    (logits,) = onnxruntime.InferenceSession(folder / "model.onnx").run(
        None, {"images": transform(Image.open(image).convert("RGB"))[None]}
    )
    powers = np.exp(logits[0].astype(np.float64))
    return dict(zip(CLASSES, powers / powers.sum(), strict=True))


class Small(torch.nn.Module):
    """The exported model in torch."""

    def forward(self, x):
        return x.mean((2, 3)) @ torch.from_numpy(matrix())


@pytest.mark.parametrize("more", [(), ("--json",), ("--top", "2", "--batch", "2"), ("--top", "99", "--skip-bad")], ids=str)
def test_the_output_is_that_of_predict(here, capsys, more):
    """Folders, files and numbers: torch and onnxruntime tell the same."""
    words = (str(here / "images"), str(here / "images" / "d.bmp"))
    asked = PredictOnnx.from_words([*words, "--onnx", str(here / "model.onnx"), *more])
    about = read_description(here / "model.onnx.json").transform
    data = DataConfig(size=about.size, mean=about.mean, std=about.std, crop=about.crop)
    same = {name: getattr(asked, name) for name in ("images", "top", "batch", "skip_bad", "json")}
    Predict(**same)._resize(Trained(Small(), "small", tuple(CLASSES), data, ""), torch.device("cpu"))
    wanted, _ = capsys.readouterr()
    code, out, err = run(capsys, "predict", *words, "--onnx", str(here / "model.onnx"), *more)
    assert (code, err) == (0, "")
    if "--json" not in more:
        assert out == wanted
        return
    for mine, theirs in zip(out.splitlines(), wanted.splitlines(), strict=True):
        mine, theirs = json.loads(mine), json.loads(theirs)
        assert mine["image"] == theirs["image"]
        assert [entry["name"] for entry in mine["classes"]] == [entry["name"] for entry in theirs["classes"]]
        for one, other in zip(mine["classes"], theirs["classes"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)


def test_the_standard_input_and_bad_images(here, capsys, monkeypatch, tmp_path):
    image = here / "images" / "a.png"
    for data, name in ((image.read_bytes(), "standard input"), (f"{image}\n\n".encode(), str(image))):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code, out, _ = run(capsys, "predict", "-", f"--onnx={here / 'model.onnx'}", "--json")
        assert code == 0
        found = json.loads(out)
        assert found["image"] == name
        wanted = expected(here, image)
        assert {entry["name"]: entry["probability"] for entry in found["classes"]} == pytest.approx(wanted, abs=1e-6)
    (tmp_path / "bad.png").write_text("no")
    words = ("predict", str(tmp_path / "bad.png"), str(image), "--onnx", str(here / "model.onnx"))
    code, out, err = run(capsys, *words, "--skip_bad", "--json")
    assert code == 0
    assert json.loads(out)["image"] == str(image)
    assert err.splitlines() == [
        f"inline: {tmp_path / 'bad.png'} cannot be read: not an image",
        "inline: 1 images could not be read",
    ]


def test_a_grey_model(tmp_path, capsys):
    data = graph(("batch", 1, "height", "width"))
    file = write(tmp_path, data, description(data, channels=1, crop_mode="center", size=[12, 20]))
    Image.new("RGB", (30, 30), (90, 90, 90)).save(tmp_path / "a.png")
    code, out, _ = run(capsys, "predict", str(tmp_path / "a.png"), "--onnx", str(file), "--json", "--top", "1")
    logits = (90 / 255 - (0.485 + 0.456 + 0.406) / 3) / ((0.229 + 0.224 + 0.225) / 3) * matrix(1)[0].astype(np.float64)
    assert code == 0
    shares = np.exp(logits) / np.exp(logits).sum()
    (entry,) = json.loads(out)["classes"]
    assert (entry["name"], entry["probability"]) == (CLASSES[shares.argmax()], pytest.approx(shares.max(), abs=1e-6))


def test_every_option_of_predict_is_taken_or_refused():
    """An option that `inline predict` gets must be thought of here."""
    taken = {entry.name for entry in fields(PredictExported)}
    assert taken | set(NOT_FOR_FILES) == {entry.name for entry in fields(Predict)}
    assert not taken & set(NOT_FOR_FILES)
    for kind, command in (("onnx", PredictOnnx), ("openvino", PredictOpenVino)):
        assert {entry.name for entry in fields(command)} == taken | {kind}
    assert {entry.name: entry.default for entry in fields(PredictExported)} == {
        entry.name: entry.default for entry in fields(Predict) if entry.name in taken
    }


@pytest.mark.parametrize("name", NOT_FOR_FILES)
def test_options_that_do_not_go_with_it(here, capsys, name):
    for word in ([f"--{name}", "1"], [f"--{name}=1"], [f"--no-{name}"]):
        code, out, err = run(capsys, "predict", str(here / "images"), *word, "--onnx", str(here / "model.onnx"))
        assert (code, out, err) == (2, "", f"inline: {word[0].partition('=')[0]} does not go with --onnx: leave it out\n")


def test_from_python_too(here, capsys):
    PredictOnnx((str(here / "images" / "a.png"),), onnx=here / "model.onnx", top=1).run()
    out, _ = capsys.readouterr()
    wanted = expected(here, here / "images" / "a.png")
    best = max(wanted, key=lambda name: wanted[name])
    assert out == f"{here / 'images' / 'a.png'}\n  {wanted[best]:7.2%}  {best}\n"


def test_help_names_it(capsys):
    code, out, _ = run(capsys, "predict", "--help")
    assert code == 0
    assert "--onnx" in out
    code, out, _ = run(capsys, "predict", "--onnx", "x", "--help")
    assert code == 0
    assert all(f"--{entry.name.replace('_', '-')}" in out for entry in fields(PredictOnnx) if entry.name != "images")


def test_a_name_that_begins_with_a_dash(here, capsys, monkeypatch, tmp_path):
    shutil.copy(here / "images" / "a.png", tmp_path / "-a.png")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "predict", "--onnx", str(here / "model.onnx"), "--top", "1", "--", "-a.png")
    assert code == 0
    assert out.startswith("-a.png\n")


def test_a_segmenter_draws_the_class_of_every_pixel(here, capsys, tmp_path, monkeypatch):
    """By the channel that is brightest; no name is given twice, and no image is written over."""
    data = segmenter_graph()
    file, image = write(tmp_path, data, segmenter_description(data)), here / "images" / "a.png"
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "predict", str(image), str(image), "--onnx", str(file), "--json")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    drawn = [f"predictions/{name}.png" for name in ("a", "a-2")]
    assert [(row["image"], row["drawn"], row["labels"]) for row in rows] == [
        (str(image), path, path.replace(".png", "_labels.png")) for path in drawn
    ]
    labels = np.asarray(Image.open(tmp_path / rows[0]["labels"]))
    assert labels.shape == np.asarray(Image.open(image)).shape[:2]
    shares = {entry["name"]: entry["share"] for entry in rows[0]["classes"]}
    assert shares == {name: (labels == number).mean() for number, name in enumerate(CLASSES) if (labels == number).any()}
    assert np.asarray(Image.open(tmp_path / drawn[0])).shape[1] == np.asarray(Image.open(image)).shape[1] * 12
    code, out, _ = run(capsys, "predict", str(image), "--onnx", str(file), "--out", "other")
    assert code == 0
    assert out.splitlines()[0] == f"{image} -> other/a.png"
    assert sum(float(line.split("%")[0]) for line in out.splitlines()[1:]) == pytest.approx(100, abs=0.05)
    Image.new("RGB", (9, 9)).save(tmp_path / "b.png")
    code, _, err = run(capsys, "predict", "b.png", "--onnx", str(file), "--out", ".")
    assert (code, err) == (2, "inline: b.png would be written over the image that it is made from: choose another --out\n")


def test_openvino_says_what_onnxruntime_says(here, capsys, tmp_path):
    """The same model as an IR; a part of it that is missing, cut or replaced is refused."""
    parts = [write_ir(tmp_path), tmp_path / "model.bin"]
    about = json.loads((tmp_path / "model.xml.json").read_text())
    found = {}
    for kind, file in (("onnx", here / "model.onnx"), ("openvino", parts[0])):
        code, out, err = run(capsys, "predict", str(here / "images"), f"--{kind}", str(file), "--json")
        assert (code, err) == (0, "")
        found[kind] = [json.loads(line)["classes"] for line in out.splitlines()]
    for one, other in zip(found["onnx"], found["openvino"], strict=True):
        assert [entry["name"] for entry in one] == [entry["name"] for entry in other]
        assert [entry["probability"] for entry in one] == pytest.approx([entry["probability"] for entry in other], abs=1e-6)
    words = ("predict", str(here / "images"), "--openvino", str(parts[0]))
    for part in parts:
        data = part.read_bytes()
        for other in (data[:-1], b"", bytes([data[0] ^ 1]) + data[1:]):
            part.write_bytes(other)
            said = f"{part} is not the file that model.xml.json describes: truncated, or replaced"
            assert run(capsys, *words) == (2, "", f"inline: {said}\n")
        part.write_bytes(data)
    parts[1].rename(tmp_path / "other.bin")
    assert run(capsys, *words) == (2, "", f"inline: there is no file {parts[1]}, which belongs to model.xml\n")
    (tmp_path / "other.bin").rename(parts[1])
    parts[0].write_text("<net>")
    (tmp_path / "model.xml.json").write_text(json.dumps({**about, "sha256": sha256(b"<net>").hexdigest()}))
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"inline: {parts[0]} cannot be opened as OpenVINO: ")
    (tmp_path / "model.xml.json").write_text((here / "model.onnx.json").read_text())
    said = f"{tmp_path / 'model.xml.json'} describes a file of the format onnx, not an OpenVINO file"
    assert run(capsys, *words) == (2, "", f"inline: {said}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--onnx", "a.onnx", "--openvino", "a.xml"], "--openvino does not go with --onnx: leave it out"),
        (["--openvino", "a.xml", "--onnx", "a.onnx"], "--onnx does not go with --openvino: leave it out"),
        (["--openvino", "a.xml", "--model", "x"], "--model does not go with --openvino: leave it out"),
        (["--openvino", "a.onnx"], "an OpenVINO file ends in .xml, got a.onnx"),
        (["--openvino", "nowhere.xml"], "there is no file nowhere.xml"),
        (["--onnx", "HERE/model.onnx", "--out", "x"], "--out is for models that segment: leave it out"),
    ],
)
def test_mistakes_with_two_runtimes(here, capsys, words, message):
    words = [word.replace("HERE", str(here)) for word in words]
    assert run(capsys, "predict", str(here / "images"), *words) == (2, "", f"inline: {message}\n")


def test_without_openvino_it_says_how_to_get_it(here, capsys, monkeypatch, tmp_path):
    for name in ("model.xml", "model.bin"):
        (tmp_path / name).write_bytes(b"")
    empty = sha256(b"").hexdigest()
    about = {**description(b""), "format": "openvino", "sha256": empty, "sha256_bin": empty}
    (tmp_path / "model.xml.json").write_text(json.dumps(about))
    monkeypatch.setitem(sys.modules, "openvino", None)
    code, _, err = run(capsys, "predict", str(here / "images"), "--openvino", str(tmp_path / "model.xml"))
    assert (code, err) == (2, "inline: the command needs openvino: pip install 'inline-attention[openvino]'\n")


BAD = {
    "no images": (["--onnx", "HERE/model.onnx"], "no images: give files, folders, or '-' for the standard input"),
    "no such image": (["nowhere", "--onnx", "HERE/model.onnx"], "there is no image nowhere"),
    "empty folder": (["HERE/empty", "--onnx", "HERE/model.onnx"], "HERE/empty holds no images"),
    "no image": (
        ["HERE/model.onnx.json", "--onnx", "HERE/model.onnx"],
        "HERE/model.onnx.json cannot be read: not an image (--skip-bad goes on)",
    ),
    "cut image": (["HERE/cut.png", "--onnx", "HERE/model.onnx"], "HERE/cut.png cannot be read: "),
    "top": (["IMAGE", "--onnx", "HERE/model.onnx", "--top", "0"], "--batch and --top must be positive, got 16 and 0"),
    "batch": (["IMAGE", "--onnx", "HERE/model.onnx", "--batch", "-3"], "--batch and --top must be positive, got -3 and 5"),
    "number": (["IMAGE", "--onnx", "HERE/model.onnx", "--top", "x"], "--top: invalid int value: 'x'"),
    "no number": (["IMAGE", "--onnx", "HERE/model.onnx", "--top"], "--top: expected one argument"),
    "no file": (["IMAGE", "--onnx"], "--onnx: expected one argument"),
    "misspelt": (["IMAGE", "--onnx", "HERE/model.onnx", "--jsn"], "unknown option --jsn (did you mean --json?)"),
    "abbreviated": (["IMAGE", "--onnx", "HERE/model.onnx", "--skip"], "unknown option --skip (did you mean --skip-bad?)"),
    "no such file": (["IMAGE", "--onnx", "nowhere.onnx"], "there is no file nowhere.onnx"),
    "other kind": (["IMAGE", "--onnx", "HERE/model.onnx.json"], "an ONNX file ends in .onnx, got HERE/model.onnx.json"),
    "folder": (["IMAGE", "--onnx", "HERE"], "an ONNX file ends in .onnx, got HERE"),
    "no description": (["IMAGE", "--onnx", "HERE/alone.onnx"], "there is no HERE/alone.onnx.json, which says "),
    "cut file": (
        ["IMAGE", "--onnx", "HERE/cut.onnx"],
        "HERE/cut.onnx is not the file that cut.onnx.json describes: truncated, or replaced",
    ),
    "cut description": (["IMAGE", "--onnx", "HERE/half.onnx"], "HERE/half.onnx.json is not JSON, perhaps it is truncated: "),
    "no ONNX": (["IMAGE", "--onnx", "HERE/text/model.onnx"], "HERE/text/model.onnx cannot be opened as ONNX: "),
    "classes": (["IMAGE", "--onnx", "HERE/five/model.onnx"], "HERE/five/model.onnx: the output ['batch', 5] does not fit "),
}


@pytest.fixture(scope="module")
def bad(here, tmp_path_factory):
    """Files that are not what they should be."""
    folder = tmp_path_factory.mktemp("bad")
    data, text = (here / "model.onnx").read_bytes(), (here / "model.onnx.json").read_text()
    for name, content, words in (
        ("model", data, text),
        ("alone", data, None),
        ("cut", data[:-20], text),
        ("half", data, text[:200]),
    ):
        (folder / f"{name}.onnx").write_bytes(content)
        if words is not None:
            (folder / f"{name}.onnx.json").write_text(words)
    write(folder / "text", b"this is text")
    write(folder / "five", graph(output=("batch", 5)))
    (folder / "empty").mkdir()
    (folder / "cut.png").write_bytes((here / "images" / "a.png").read_bytes()[:700])
    return folder


@pytest.mark.parametrize("case", BAD)
def test_mistakes_end_in_one_line(here, bad, capfd, case):
    words, message = BAD[case]
    words = [word.replace("HERE", str(bad)).replace("IMAGE", str(here / "images" / "a.png")) for word in words]
    code, out, err = run(capfd, "predict", *words)
    assert (code, out) == (2, "")
    assert err.startswith("inline: " + message.replace("HERE", str(bad))), err
    assert err.count("\n") == 1


def test_without_onnxruntime_it_says_how_to_get_it(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = run(capsys, "predict", str(here / "images"), "--onnx", str(here / "model.onnx"))
    assert (code, err) == (2, "inline: the command needs onnxruntime: pip install 'inline-attention[onnx]'\n")


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The folder of a fresh environment: onnxruntime, numpy and pillow with what they need, and this package alone."""
    folder = tmp_path_factory.mktemp("bare")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)  # builds leave files behind
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "-c", ROOT / "constraints.txt"]
    for words in (["onnxruntime", "numpy", "pillow"], ["--no-deps", source]):
        done = subprocess.run([*pip, *words], env=clean(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "venv"


def clean() -> dict[str, str]:
    """This environment, without what would let packages in by another door."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def in_bare(bare, here, *words):
    command = [bare / "bin" / words[0], *words[1:]]
    return subprocess.run(command, env=clean(), cwd=here, capture_output=True, text=True, check=False)


def test_on_a_machine_without_torch(bare, here):
    """A fresh environment, into which torch never came. One test, since every process that runs one would make another."""
    for name in ("torch", "timm", "tyro", "rich"):
        done = in_bare(bare, here, "python", "-c", f"import {name}")
        assert done.returncode == 1
        assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr
    it_tells_what_onnxruntime_tells_here(bare, here)
    it_has_a_version_and_says_what_the_rest_needs(bare, here)
    mistakes_end_in_one_line_there_too(bare, here)


def it_tells_what_onnxruntime_tells_here(bare, here):
    done = in_bare(bare, here, "inline", "predict", "--onnx", "model.onnx", "images/a.png", "images/more", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["image"] for row in rows] == ["images/a.png", "images/more/c.jpeg"]
    for row in rows:
        found = {entry["name"]: entry["probability"] for entry in row["classes"]}
        assert found == pytest.approx(expected(here, here / row["image"]), abs=1e-6)
    shown = in_bare(bare, here, "inline", "predict", "images/a.png", "--onnx=model.onnx", "--top", "1").stdout
    assert shown.startswith("images/a.png\n  ")


def it_has_a_version_and_says_what_the_rest_needs(bare, here):
    code = "import inline_attention as i; print(i.__version__, i.__file__); from inline_attention import count"
    done = in_bare(bare, here, "python", "-c", code)
    version, file = done.stdout.split()
    assert Path(file).is_relative_to(bare)
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: inline_attention.count needs torch and timm: pip install inline-attention"
    )
    done = in_bare(bare, here, "python", "-c", "import inline_attention as i; print(hasattr(i, 'nothing')); i.nothing")
    assert done.stdout == "False\n"
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'inline_attention' has no attribute 'nothing'"
    assert in_bare(bare, here, "inline", "--version").stdout == f"inline-attention {version}\n"
    assert in_bare(bare, here, "inline", "--help").stdout.startswith("usage: inline COMMAND")
    for words in (["list"], ["predict", "images/a.png"], ["train", "--help"]):
        done = in_bare(bare, here, "inline", *words)
        assert (done.returncode, done.stderr) == (2, "inline: the command needs tyro: pip install 'inline-attention[cli]'\n")


def mistakes_end_in_one_line_there_too(bare, here):
    for words, message in (
        (["nowhere"], "there is no image nowhere"),
        (["model.onnx.json"], "model.onnx.json cannot be read: not an image (--skip-bad goes on)"),
        (["images", "--stream"], "--stream does not go with --onnx: leave it out"),
        (["images", "--tpo", "3"], "unknown option --tpo (did you mean --top?)"),
    ):
        done = in_bare(bare, here, "inline", "predict", "--onnx", "model.onnx", *words)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"inline: {message}\n")
