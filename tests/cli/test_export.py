"""What a user of `inline export` sees."""

import io
import json
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file

from inline_attention.bench.export import ExportCase
from inline_attention.cli import compare_export
from inline_attention.cli.compare_export import compare_predictions, open_eval_set
from inline_attention.cli.export import sizes_like
from inline_attention.cli.progress import stages
from inline_attention.deploy import export as exporting
from inline_attention.deploy import hub
from inline_attention.deploy.verify import SIZES
from inline_attention.lite.description import description_of
from inline_attention.training.load_trained import load_trained, make_named

from ..training.small import write_images
from .test_bench import SHORT, few
from .test_main import run


def top_classes(out: str) -> dict[str, str]:
    """Of each image in the JSON lines of `inline predict`."""
    rows = [json.loads(line) for line in out.splitlines()]
    return {row["image"]: row["classes"][0]["name"] for row in rows}


def test_a_run_is_exported_in_8_bits_and_its_file_predicts_the_same(trained, trained_small, tmp_path, monkeypatch, capsys):
    """From a run to a file that tells the same classes; a file that was damaged since is not used."""
    monkeypatch.chdir(tmp_path)
    words = ("--precision", "int8", "--data", str(trained / "data"), "--count", "40", "--workers", "0")
    code, out, err = run(capsys, "export", str(trained_small), *words)
    assert code == 0, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inline_deit_nano-int8.onnx", "inline_deit_nano-int8.onnx.json"]
    found = json.loads((tmp_path / "inline_deit_nano-int8.onnx.json").read_text())
    judged = found["accuracy"]
    assert (judged["data"], judged["images"], found["precision"]) == ("data", 12, "int8"), "the run's validation images"
    assert judged["model_top1"] > 80
    assert judged["change"] == pytest.approx(judged["file_top1"] - judged["model_top1"])
    assert judged["same_top1"] > 80
    assert (found["model"], found["classes"]) == ("inline_deit_nano", ["blue", "green", "red"])
    assert found["arguments"]["depth"] == 1
    assert found["data"]["size"] == [16, 24]
    assert {(case["height"], case["width"]) for case in found["checked"]["cases"]} == {(16, 24), (18, 34), (11, 10)}
    assert str(tmp_path) not in json.dumps(found)
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert ["bytes", f"{found['bytes']:,}"] in lines
    assert f"  same top-1          {judged['same_top1']:.2f} %" in out.splitlines()
    assert f"  change              {judged['change']:+.2f}" in out.splitlines()
    assert out.splitlines()[-1] == "Use it: inline predict --onnx inline_deit_nano-int8.onnx IMAGES"
    assert [line.partition(": ")[2] for line in err.splitlines()][:3] == [
        "exporting the graph",
        "writing onnx",
        "comparing with the model",
    ]
    assert err.splitlines()[-1].endswith(": 12 images of data")
    images = [str(trained / "data" / colour) for colour in ("blue", "green", "red")]
    code, by_file, err = run(capsys, "predict", *images, "--onnx", "inline_deit_nano-int8.onnx", "--json")
    assert (code, err) == (0, "")
    _, by_model, _ = run(capsys, "predict", *images, "--model", str(trained_small), "--json")
    one, other = top_classes(by_file), top_classes(by_model)
    assert len(one) == 60
    assert sum(one[name] == other[name] for name in other) >= 57
    data = bytearray((tmp_path / "inline_deit_nano-int8.onnx").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "inline_deit_nano-int8.onnx").write_bytes(data)
    code, _, err = run(capsys, "predict", *images, "--onnx", "inline_deit_nano-int8.onnx")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("inline: inline_deit_nano-int8.onnx is not the file that inline_deit_nano-int8.onnx.json describes")


def test_half_precision_is_compared_on_the_validation_set_of_the_run(trained_small, tmp_path, capsys):
    out = tmp_path / "with a space" / "model.pt2"
    words = (
        "--format",
        "torch-export",
        "--precision",
        "fp16",
        "--out",
        str(out),
        "--batches",
        "2",
        "--sizes",
        "40x48",
        "--json",
    )
    code, told, err = run(capsys, "export", str(trained_small), *words)
    assert code == 0, err
    found = json.loads(told)
    assert found == json.loads(description_of(out).read_text())
    result = json.loads((trained_small / "result.json").read_text())
    assert (found["accuracy"]["data"], found["accuracy"]["images"]) == ("data", 12)
    assert found["accuracy"]["model_top1"] == pytest.approx(result["top1"])
    assert found["accuracy"]["same_top1"] == 100
    assert [(case["batch"], case["height"], case["width"]) for case in found["checked"]["cases"]] == [(2, 40, 48)]


def test_a_file_that_differs_leaves_the_one_before_it(trained, tmp_path, capsys, monkeypatch):
    """How files are compared does not hang on what is in them, so these hold nothing."""
    model = load_trained(str(trained / "run")).model
    form = exporting.FORMATS["torch-export"]._replace(
        write=lambda program, path, precision: path.write_text("nothing"),
        open=lambda path, precision: lambda images: model(images) + 1e-3,
    )
    monkeypatch.setattr(exporting, "export_graph", lambda model, channels: None)
    monkeypatch.setitem(exporting.FORMATS, "torch-export", form)
    out = tmp_path / "model.pt2"
    out.write_text("as it was")
    code, told, err = run(
        capsys, "export", str(trained / "run"), "--format", "torch-export", "--out", str(out), "--sizes", "40x48"
    )
    assert (code, told) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("inline: torch-export differs from the model by 1.0")
    assert last.endswith("e-03 at 1 x 40 x 48: not written")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"model.pt2": "as it was"}


def test_a_folder_for_the_hub(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "export", str(trained / "run"), "--format", "hub")
    assert code == 0, err
    folder = tmp_path / "inline_swin_nano-hub"
    assert {path.name for path in folder.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    assert out.splitlines()[-1] == (
        "Load it: import inline_attention, timm; timm.create_model('local-dir:inline_swin_nano-hub', pretrained=True)"
    )
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, 16, 24)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), load_trained(str(trained / "run")).model(images))
    card = (folder / "README.md").read_text()
    result = json.loads((trained / "run" / "result.json").read_text())
    assert f"| top-1 | {result['top1']:.2f} % |" in card
    assert "| epochs | 6 |" in card
    before = (folder / "config.json").stat().st_mtime_ns
    code, _, err = run(capsys, "export", str(trained / "run"), "--format", "hub")
    assert (code, err) == (2, "inline: inline_swin_nano-hub exists already: choose another folder\n")
    image = str(next((trained / "data").rglob("*.png")))
    from_run, from_hub = (run(capsys, "predict", image, "--model", str(model))[1] for model in (trained / "run", folder))
    assert from_hub == from_run, "commands take the folder, too"
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_the_card_of_a_finished_run_of_the_first_version(trained, tmp_path, capsys):
    """Its result.json has other names."""
    shutil.copytree(trained / "run", tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    result = json.loads(path.read_text())
    result["pictures"] = images = result.pop("images")
    path.write_text(json.dumps(result))
    code, _, err = run(capsys, "export", str(tmp_path / "run"), "--format", "hub", "--out", str(tmp_path / "hub"))
    assert code == 0, err
    assert f"{images} validation images" in (tmp_path / "hub" / "README.md").read_text()
    for damaged in ('{"top1": []}', "[]", "{"):
        (tmp_path / "run" / "result.json").write_text(damaged)
        code, _, err = run(capsys, "export", str(tmp_path / "run"), "--format", "hub", "--out", str(tmp_path / "other"))
        assert (code, err.count("\n"), "result.json" in err) == (2, 1, True), err


def test_an_untrained_model_is_called_so(tmp_path, capsys):
    out = str(tmp_path / "folder")
    code, told, _ = run(capsys, "export", "inline_deit_nano", "--seed", "3", "--format", "hub", "--out", out)
    assert code == 0
    assert told.splitlines()[0] == "inline_deit_nano: untrained, seed 3; its weights are random"
    assert "no evaluation is recorded" in (tmp_path / "folder" / "README.md").read_text()


def test_pushing(trained, tmp_path, monkeypatch, capsys):
    asked = []

    class Api:
        def __init__(self, token):
            assert token is None

        def create_repo(self, repo_id, private, exist_ok):
            asked.append((repo_id, private, exist_ok))

        def upload_folder(self, repo_id, folder_path, commit_message):
            if repo_id == "owner/refused":
                raise RuntimeError("401: no token")
            return f"uploaded {sorted(path.name for path in folder_path.iterdir())}"

    monkeypatch.setattr(hub, "HfApi", Api)
    words = ("export", str(trained / "run"), "--format", "hub", "--out")
    code, out, _ = run(capsys, *words, str(tmp_path / "a"), "--push", "owner/colours", "--private", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["address"] == "uploaded ['README.md', 'config.json', 'model.safetensors']"
    assert found["bytes"]["model.safetensors"] == (tmp_path / "a" / "model.safetensors").stat().st_size
    assert asked == [("owner/colours", True, True)]
    assert "hf-hub:owner/colours" in (tmp_path / "a" / "README.md").read_text()
    code, _, err = run(capsys, *words, str(tmp_path / "b"), "--push", "owner/refused")
    assert (code, err.count("\n")) == (2, 1)
    later = f"hf upload owner/refused {shlex.quote(str(tmp_path / 'b'))}"
    assert err.endswith(f"; the folder is written, `{later}` uploads it\n")
    assert (tmp_path / "b" / "config.json").is_file()


@pytest.fixture(scope="module")
def bad(trained, tmp_path_factory):
    """Things that cannot be exported."""
    here = tmp_path_factory.mktemp("bad")
    for name, task in (("detector", "detect"), ("segmenter", "segment")):
        (here / name).mkdir()
        facts = {"model": "inline_pvt_nano", "arguments": {}, "task": {"name": task}}
        save_file({"a": torch.zeros(1)}, here / name / "best.safetensors", {"inline": json.dumps(facts)})
    save_file(timm.create_model("test_vit", num_classes=3).state_dict(), here / "vit.safetensors")
    (here / "empty").mkdir()
    (here / "file.txt").write_text("no folder")
    return here


MISTAKES = {
    "model": (["inline_diet_nano"], "inline_diet_nano is neither a run's folder, nor a file, nor a model (did you mean "),
    "no weights": (["inline_deit_nano", "--weights", "nowhere"], "there is no file nowhere"),
    "no run": (["BAD/empty"], "BAD/empty holds no best.safetensors"),
    "both": (["RUN", "--weights", "x"], "--weights is for a model that is named, and RUN has its own: leave out "),
    "detector": (["BAD/detector"], "BAD/detector was trained to detect: its boxes are chosen by their values, which "),
    "hub of a segmenter": (["BAD/segmenter", "--format", "hub"], "--format hub, --ema and --data are for models that classify"),
    "data of a segmenter": (["BAD/segmenter", "--data", "x"], "--format hub, --ema and --data are for models that classify"),
    "no average": (["inline_deit_nano", "--ema"], "--ema: inline_deit_nano has no weights to take an average out of"),
    "no classifier": (["vit_small_patch8_224"], "vit_small_patch8_224 has no classifier: there is nothing to export"),
    "fixed size": (["swin_tiny_patch4_window7_224"], "SwinTransformer does not take images of 256 x 320: "),
    "one size": (
        ["test_vit", "--weights", "BAD/vit.safetensors", "--sizes", "160x160"],
        "VisionTransformer cannot be exported for every batch, height and width: ",
    ),
    "too small": (["inline_deit_nano", "--sizes", "8x8"], "InLineDeiT does not take images of 8 x 8: images must "),
    "sizes": (["RUN", "--sizes", "224x224", "256by3"], "--sizes are heights and widths such as 224x224 256x320, got '256by3'"),
    "no size": (["RUN", "--sizes", "0x8"], "--sizes are heights and widths such as 224x224 256x320, got '0x8'"),
    "huge": (["RUN", "--sizes", "8x99999"], "--sizes are heights and widths such as 224x224 256x320, got '8x99999'"),
    "batches": (["RUN", "--batches", "2", "0"], "--batches must be positive, got 2 0"),
    "no batches": (["RUN", "--batches"], "--batches must be positive, got none"),
    "count": (["RUN", "--count", "0"], "--count must be positive, got 0"),
    "workers": (["RUN", "--workers", "-1"], "--workers must not be negative, got -1"),
    "int8": (["RUN", "--format", "torch-export", "--precision", "int8"], "int8 is for files of the format onnx or openvino, "),
    "suffix": (["RUN", "--out", "BAD/model.pt2"], "a file of the format onnx ends in .onnx, got BAD/model.pt2"),
    "no suffix": (["RUN", "--out", "BAD/model", "--format", "aoti"], "a file of the format aoti ends in .pt2, got BAD/model"),
    "bin": (["RUN", "--format", "openvino", "--out", "BAD/a.bin"], "a file of the format openvino ends in .xml, got BAD/a.bin"),
    "bf16": (["RUN", "--precision", "bf16"], "bf16 is for files of the format openvino, not for onnx"),
    "folder": (["RUN", "--out", "/proc/nowhere/model.onnx"], "cannot write to /proc/nowhere: "),
    "no folder": (["RUN", "--out", "BAD/file.txt/model.onnx"], "BAD/file.txt is a file, not a folder"),
    "hub folder": (["RUN", "--format", "hub", "--out", "/proc/nowhere/x"], "cannot write to /proc/nowhere: "),
    "no data": (["RUN", "--data", "nowhere"], "there is no folder nowhere"),
    "no images": (["RUN", "--data", "BAD/empty"], "BAD/empty holds no class folders"),
    "no hub": (["RUN", "--push", "owner/name"], "--push is for --format hub: leave it out"),
    "hub precision": (["RUN", "--format", "hub", "--precision", "fp16"], "--precision is for files, not for --format hub: "),
    "private": (["RUN", "--format", "hub", "--private"], "--private is about the repository that --push OWNER/NAME makes"),
    "repository": (["RUN", "--format", "hub", "--push", "name"], "--push takes OWNER/NAME, got 'name'"),
    "format": (["RUN", "--format", "tensorrt"], "--format takes one of onnx, openvino, torch-export, aoti, hub, got tensorrt"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_end_in_one_line(trained, bad, tmp_path, monkeypatch, capsys, case):
    monkeypatch.chdir(tmp_path)
    words, message = MISTAKES[case]

    def there(text):
        return text.replace("RUN", str(trained / "run")).replace("BAD", str(bad))

    before = sorted(bad.rglob("*"))
    code, out, err = run(capsys, "export", *map(there, words))
    assert (code, out) == (2, "")
    told = [line for line in err.splitlines() if "exporting the graph" not in line]
    assert len(told) == 1, err
    assert told[0].startswith(f"inline: {there(message)}"), err
    assert sorted(bad.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "name", "extra"),
    [*(("onnx", name, "onnx") for name in ("onnx", "onnxruntime", "onnxscript")), ("openvino", "openvino", "openvino")],
)
def test_without_a_package_it_says_how_to_get_it(trained, tmp_path, monkeypatch, capsys, kind, name, extra):
    monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / ("a.onnx" if kind == "onnx" else "a.xml")
    code, _, err = run(capsys, "export", str(trained / "run"), "--format", kind, "--out", str(out))
    assert (code, err) == (2, f"inline: the command needs {name}: pip install 'inline-attention[{extra}]'\n")
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_format(capsys):
    _, out, _ = run(capsys, "--help")
    assert "export" in out
    code, out, _ = run(capsys, "export", "--help")
    assert code == 0
    assert all(
        word in out
        for word in ("onnx", "openvino", "torch-export", "aoti", "hub", "--precision", "--push", "--sizes", "--json")
    )


def compared(trained, run, data, **asked):
    usual = {"count": 1000, "workers": 0, "seed": 0, "say": lambda text: None}
    return compare_predictions(trained, run, open_eval_set(trained, "a model", str(data), None, None), **{**usual, **asked})


def test_predictions_of_file_and_model_are_compared(trained, tmp_path):
    """Accuracy where the classes are the model's, agreement alone where they are others, or none."""
    model = load_trained(str(trained / "run"))
    same = compared(model, model.model, trained / "data")
    assert (same["images"], same["same_top1"], same["change"]) == (60, 100, 0)
    assert same["model_top1"] == same["file_top1"] > 80

    def other(images):
        return model.model(images).roll(1, dims=1)

    found = compared(model, other, trained / "data")
    assert found["same_top1"] == 0
    assert found["model_top1"] == same["model_top1"]
    assert found["change"] == pytest.approx(found["file_top1"] - same["model_top1"])
    assert found["file_top1"] < 20
    write_images(tmp_path / "others", 5, classes=("red",))
    (tmp_path / "others" / "red").rename(tmp_path / "others" / "zebra")
    for folder in (tmp_path / "others", tmp_path / "others" / "zebra"):
        found = compared(model, model.model, folder)
        assert found == {
            "data": folder.name, "images": 5, "model_top1": None, "file_top1": None, "change": None, "same_top1": 100,
        }  # fmt: skip
    found = compared(model, model.model, "digits", count=20)
    assert (found["data"], found["images"], found["change"]) == ("digits", 20, None)


def test_a_part_of_the_images_is_drawn_by_the_seed(trained):
    model, seen = load_trained(str(trained / "run")), []

    def watched(images):
        seen.append(images)
        return model.model(images)

    for seed in (0, 0, 1):
        assert compared(model, watched, trained / "data", count=7, seed=seed)["images"] == 7
    assert [len(images) for images in seen] == [7, 7, 7]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_numbers_that_are_none_and_images_that_cannot_be_read_end_it(trained, tmp_path, monkeypatch):
    model = load_trained(str(trained / "run"))
    said = r"^nothing is written: the file gives numbers that are not finite \(NaN or infinity\) for .*\.png: "
    with pytest.raises(FloatingPointError, match=said):
        compared(model, lambda images: model.model(images) / 0, trained / "data")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(ValueError, match=r"b\.png cannot be read: not an image: take it out of "):
        compared(model, model.model, tmp_path)
    monkeypatch.setattr(compare_export, "REPORT_SECONDS", -1)
    said = []
    compared(model, model.model, trained / "data", say=said.append)
    assert said == ["60 images of data", *(f"{done} of 60 images" for done in (16, 32, 48, 60))]


def test_outputs_are_compared_at_sizes_like_the_models_own():
    assert sizes_like(make_named("inline_deit_nano")) == list(SIZES)
    small = timm.create_model("inline_swin_nano", img_size=(16, 24))
    for size, sizes in {(16, 24): [(16, 24), (18, 34), (11, 10)], (8, 8): [(8, 8), (9, 11)]}.items():
        assert sizes_like(SimpleNamespace(model=small, data=SimpleNamespace(size=size))) == sizes
    other = SimpleNamespace(model=torch.nn.Identity(), data=SimpleNamespace(size=(48, 48)))
    assert sizes_like(other) == [(48, 48), (55, 69), (34, 32)]
    nano = make_named("inline_deit_nano")
    least = max(8, 2 * nano.model.patch_size)
    assert sizes_like(nano, odd=True) == [*SIZES, (101, 67), (137, 251), (least + 5, least + 15), (least + 23, least + 3)]
    for side in (32, 16, 48):
        tiny = SimpleNamespace(model=torch.nn.Identity(), data=SimpleNamespace(size=(side, side)))
        assert len({size for size in sizes_like(tiny, odd=True) if min(size) >= min(side, 32)}) >= 5


def test_stages_are_one_line_on_a_terminal_and_many_in_a_log():
    for terminal in (True, False):
        written = io.StringIO()
        with stages(Console(file=written, force_terminal=terminal, width=60)) as say:
            say("first [of all]")
            say("second")
        lines = written.getvalue().splitlines()
        assert ("0 s: first [of all]" in lines, "0 s: second" in lines) == (not terminal, not terminal)


def test_bench_export(tmp_path, monkeypatch, capsys):
    """What is measured is tested elsewhere."""
    times = {name: {"best": 0.01, "median": 0.02, "rounds": 5} for name in ("inline", "inline onnx", "softmax onnx", "product")}
    record = {"onnxruntime": "1.2", "forward": times, "memory": {}, "errors": {"int8 onnx": "ValueError: no"}}
    few(monkeypatch, "export", [ExportCase("inline_deit_nano", "twin", 64, 1)], measure=lambda *case: record)
    code, out, _ = run(capsys, "bench", "export", *SHORT, str(tmp_path))
    assert code == 0
    assert "inline_deit_nano at 64, batch 1: in ONNX 1.00 times as fast as in torch" in out
    assert "Failed: int8 onnx of inline_deit_nano at 64: ValueError: no" in out
    assert {file.name for file in tmp_path.iterdir()} == {"export.json", "export.md", "export.png"}
