"""What a user of the command sees."""

import json
import re
import subprocess
import sys
import tarfile
from importlib import import_module
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import get_args

import pytest
import timm
import torch
from PIL import Image

import inline_attention
from inline_attention import load_official
from inline_attention.cli.arguments import RENAMED, explain, option_types
from inline_attention.cli.list import COUNTED, List
from inline_attention.cli.main import main
from inline_attention.models.counting import count
from inline_attention.training.checkpoint import to_bytes
from inline_attention.training.recipe import RENAMED_FIELDS
from inline_command import COMMANDS, EXPORTED, Group

from ..lite.test_decode import claim
from ..models.published import hollow, official
from ..training.small import write_images


def run(capsys, *arguments):
    """Exit code, output, error output."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as stop:
        code = stop.code if stop.code is not None else 0
    out, err = capsys.readouterr()
    return code, out, err


def test_help_is_a_table_of_contents(capsys):
    """Without any word, too. It names every command, and the version."""
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert "\n  -V, --version  print the version\n" in out
    assert run(capsys) == run(capsys, "-h") == (0, out, "")
    code, out, _ = run(capsys, "bench", "--help")
    assert code == 0
    assert all(f"\n  {command} " in out for command in COMMANDS["bench"].commands)
    code, out, _ = run(capsys, "bench", "layer", "--help")
    assert code == 0
    assert all(option in out for option in ("--out", "--seed", "--device", "--json", "--quick"))


def test_help_says_that_stream_segments_too(capsys):
    assert "Classify or segment each file at its own size" in " ".join(run(capsys, "predict", "--help")[1].split())


@pytest.mark.parametrize(
    "words",
    ["--version", "-V", "version", "train --version", "bench --version", "bench layer -V", "predict --onnx x -V"],
)
def test_the_version_is_an_option_everywhere(capsys, words):
    code, out, err = run(capsys, *words.split())
    assert (code, err) == (0, "")
    assert re.fullmatch(r"inline-attention \d+\.\d+\.\d+\n", out)


SHARED = {"out": Path, "seed": int, "device": str, "resume": bool, "json": bool, "workers": int, "skip-bad": bool}
"""Options that mean the same in every command that has them."""


def test_every_command_is_where_the_table_says():
    """And shares its words with the others."""
    groups = [entry.commands if isinstance(entry, Group) else {name: entry} for name, entry in COMMANDS.items()]
    found = [command for group in groups for command in group.values()]
    assert len(found) == 27
    for command in found:
        kind = getattr(import_module(f"inline_attention.cli.{command.module}"), command.name)
        assert callable(kind.run)
        assert kind.__doc__
        for name, hint in option_types(kind).items():
            assert SHARED.get(name, hint) in (hint, *get_args(hint)), (command.name, name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "layer", "--quik"], "unknown option --quik (did you mean --quick?)"),
        (["trian"], "unknown command inline trian (did you mean inline train?); there are: train, eval, "),
        (["analyze", "map"], "unknown command inline analyze map (did you mean inline analyze maps?); there are: maps, "),
        (["xyz"], "unknown command inline xyz; there are: train, eval, "),
        (["bench"], "inline bench needs one of: layer, mixers, models, "),
        (["eval"], "inline eval needs MODEL: see inline eval --help"),
        (["convert", "a"], "inline convert needs FILE and OUT: see inline convert --help"),
        (["eval", "x", "--size", "32", "--json"], "--size takes 2 whole numbers, got 32"),
        (["eval", "x", "--batch"], "--batch takes a whole number, got nothing"),
        (["bench", "layer", "--seconds=abc"], "--seconds takes a number, got abc"),
        (["export", "x", "--format", "trt"], "--format takes one of onnx, openvino, torch-export, aoti, hub, got trt"),
        (["analyze", "maps", "--layers", "1", "x"], "--layers takes whole numbers, got 1 x"),
        (["linearize", "x", "--local", "maybe", "--size", "3", "4"], "--local takes true or false, got maybe"),
        (["reproduce", "--form", "x"], "unknown option --form (did you mean --from?)"),
    ],
)  # fmt: skip
def test_mistakes_end_in_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"inline: {message}")
    assert err.count("\n") == 1


def test_what_no_type_explains_is_a_line_too():
    assert explain(["a b"], List, "list") == "inline list does not understand 'a b': see inline list --help"


def test_an_option_that_was_renamed_says_its_new_name(capsys, monkeypatch):
    monkeypatch.setitem(RENAMED, "--fast", "--quick")
    assert run(capsys, "bench", "layer", "--fast") == (2, "", "inline: --fast is now called --quick\n")
    assert run(capsys, "eval", "x", "--view", "center")[2] == "inline: --view is now called --crop-mode\n"
    fields = {f"--{old}".replace("_", "-"): f"--{new}".replace("_", "-") for old, new in RENAMED_FIELDS.items()}
    assert fields.items() <= RENAMED.items(), "fields of the recipe are options, too"


def test_every_option_of_version_0_1_is_there_or_says_its_new_name():
    """Stored: the options of each command of 0.1.0, by the name of its class."""
    stored = json.loads((Path(__file__).parents[1] / "stored" / "options_0_1.json").read_text())
    entries = [entry.commands.values() if isinstance(entry, Group) else [entry] for entry in COMMANDS.values()]
    commands = {command.name: command for group in [*entries, EXPORTED.values()] for command in group}
    assert set(commands) - set(stored) == {"Weights", "PredictOpenVino", "Features", "BenchBags", "BenchMixers"}, (
        "new since then"
    )
    removed = set()
    for name, options in stored.items():
        present = option_types(getattr(import_module(f"inline_attention.cli.{commands[name].module}"), name))
        for option in set(options) - set(present) - {"onnx" if name == "Predict" else ""}:  # --onnx chooses PredictOnnx
            removed.add(f"--{option}")
            assert RENAMED[f"--{option}"].removeprefix("--") in present, (name, option)
    assert removed == {"--data.view", "--view", "--picture"}
    assert removed == set(RENAMED)


HELPS = [
    ["--help"], ["train", "--version"], ["train", "--help"], ["train", "--help-all"], ["eval", "-h"], ["predict", "--help"],
    ["predict", "--onnx", "a.onnx", "--help"], ["list", "--help"], ["bench", "--help"], ["bench", "layer", "--help"],
    ["analyze", "report", "--help"], ["explore", "--help"], ["reproduce", "--help"], ["linearize", "--help"],
    ["convert", "--help"], ["export", "--help"], ["trian"],
]  # fmt: skip


def test_help_and_version_wait_for_neither_torch_nor_timm():
    """The console script, a process each time in principle; here one process forgets the package between two commands."""
    code = f"""
import sys
from inline_command import main
for words in {HELPS!r}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "inline_attention"]:
        del sys.modules[name]
    sys.argv = ["inline", *words]
    try:
        main()
    except SystemExit:
        pass
    heavy = {{"torch", "timm"}} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("usage: inline") == len(HELPS) - 2
    assert not any(word in done.stdout for word in ("{None}", "--opened")), "neither types of Python nor what is no option"
    assert done.stderr.startswith("inline: unknown command inline trian")


def test_list(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # an empty cache of weights
    code, out, _ = run(capsys, "list", "inline_pvt_*", "--plot", "--out", str(tmp_path))
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["inline_pvt_large", "224x224", "51.15M*", "10.13G", "83.6", "online"] in lines
    assert ["inline_pvt_tiny", "224x224", "12.03M", "1.98G", "78.2", "online"] in lines
    assert "as reported by Han et al." in out
    assert "* the authors' table prints: inline_pvt_large 50.2M." in out
    assert (tmp_path / "models.png").stat().st_size > 10_000
    assert "inline_swin_tiny" in run(capsys, "list", "swin")[1]
    code, out, _ = run(capsys, "list", "inline_deit_tiny", "--json")
    assert json.loads(out)["models"][0]["params"] == 6_477_736
    code, _, err = run(capsys, "list", "resnet*")
    assert code == 2
    assert err.startswith("inline: no model is named like 'resnet*'; there are: inline_cswin_base, ")


@pytest.mark.parametrize("name", [name for name in COUNTED if "nano" in name])
def test_stored_costs_are_those_that_are_counted(name):
    """tests/models/test_golden.py has those of the published models."""
    with torch.device("meta"):
        model = timm.create_model(name)
    found = count(model)
    assert COUNTED[name] == (*model.img_size, found.params, found.flops, found.activations)


def test_every_model_has_stored_costs():
    """They are kept, because counting all models takes ten seconds."""
    assert set(COUNTED) == set(timm.list_models("inline_*"))


def test_convert(capsys, tmp_path):
    source, target = tmp_path / "published.pth", tmp_path / "new" / "weights.safetensors"
    torch.save({"model": official("inline_pvt_tiny"), "epoch": 3}, source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert code == 0
    assert f"{source} is inline_pvt_tiny\n166 tensors matched\nWritten: {target}\n" in out
    model = timm.create_model("inline_pvt_tiny", checkpoint_path=str(target)).eval()
    expected = hollow("inline_pvt_tiny")
    load_official(expected, source)
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(model(images), expected(images))
    assert [file.name for file in target.parent.iterdir()] == ["weights.safetensors"]
    twin = timm.create_model("inline_swin_nano", mixer="softmax", num_classes=5)
    torch.save(twin.state_dict(), source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert f"{source} is inline_swin_nano with mixer='softmax', num_classes=5" in out


def test_convert_asks_which_of_several_models_it_is(capsys, tmp_path):
    source, target = tmp_path / "published.pth", tmp_path / "weights.safetensors"
    torch.save({"model": timm.create_model("deit_tiny_patch16_224").state_dict()}, source)
    code, out, _ = run(capsys, "convert", str(source), str(target))
    assert "is inline_deit_tiny with mixer='softmax', num_heads=3" in out
    torch.save(hollow("inline_cswin_base_384").state_dict(), source)
    code, _, err = run(capsys, "convert", str(source), str(target))
    assert err == f"inline: {source} fits inline_cswin_base, inline_cswin_base_384: choose one with --model, got None\n"
    code, out, _ = run(capsys, "convert", str(source), str(target), "--model", "inline_cswin_base_384")
    assert code == 0
    assert f"{source} is inline_cswin_base_384\n" in out


def test_convert_says_what_is_wrong(capsys, tmp_path):
    weights = tmp_path / "weights.pth"
    torch.save({"fc.weight": torch.zeros(3, 3)}, weights)
    out = str(tmp_path / "out.safetensors")
    for arguments, message in (
        (["/nowhere", out], "inline: there is no file /nowhere"),
        ([str(weights), "out.pth"], "inline: the file to write must end in .safetensors, got out.pth"),
        ([str(weights), out], f"inline: {weights} is of none of the package's models, nor of a softmax twin of one"),
        ([str(weights), out, "--ema"], f"inline: {weights} holds no moving average (EMA); it has: fc.weight"),
    ):
        code, _, err = run(capsys, "convert", *arguments)
        assert (code, err) == (2, message + "\n")
    assert [file.name for file in tmp_path.iterdir()] == ["weights.pth"]


def test_version_and_a_closed_pipe(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"inline-attention {inline_attention.__version__}\n")
    script = f"{sys.executable} -c 'from inline_command import main; main()'"
    done = subprocess.run(f"{script} train --help-all | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("usage: inline train")
    assert not done.stderr


def test_without_the_extra_it_says_how_to_get_it(capsys, monkeypatch):
    def needs_scipy(self):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")

    monkeypatch.setattr("inline_attention.cli.reproduce.Reproduce.run", needs_scipy)
    expected = "inline: the command needs {}: pip install 'inline-attention[{}]'\n"
    assert run(capsys, "reproduce")[::2] == (2, expected.format("scipy", "train"))
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert run(capsys, "list")[::2] == (2, expected.format("tyro", "cli"))


STORED = Path(__file__).parents[1] / "stored" / "run_0_1"
"""A run of digits."""
BAD_NAME = "ev\x1b[31mil\n.png"


def test_names_are_escaped_in_messages_and_results(capsys, tmp_path):
    """No command to the terminal in a file's name reaches it, and a message is one line."""
    bad, good = tmp_path / BAD_NAME, tmp_path / f"2{BAD_NAME}"
    bad.write_bytes(b"no image")
    Image.new("RGB", (20, 20)).save(good, format="PNG")
    words = ("predict", str(bad), str(good), "--model", str(STORED))
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err == f"inline: {tmp_path}/ev\\x1b[31mil\\n.png cannot be read: not an image (--skip-bad goes on)\n"
    code, out, err = run(capsys, *words, "--skip-bad")
    assert code == 0
    assert out.splitlines()[0] == f"{tmp_path}/2ev\\x1b[31mil\\n.png"
    assert "\x1b" not in out + err
    assert run(capsys, "eval", f"\x1b]0;{BAD_NAME}")[2].count("\n") == 1


def test_an_output_of_few_characters(monkeypatch, tmp_path):
    """As of LANG=C: what it does not have is escaped, without a UnicodeEncodeError."""
    image = tmp_path / "b\u00e4r.png"
    Image.new("RGB", (20, 20)).save(image)
    outputs = [TextIOWrapper(BytesIO(), encoding="ascii", errors="strict") for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", outputs[0])
    monkeypatch.setattr(sys, "stderr", outputs[1])
    main(["predict", str(image), "--model", str(STORED)])
    with pytest.raises(SystemExit):
        main(["eval", "\u00e4\udcff"])
    for output in outputs:
        output.seek(0)
    assert outputs[0].read().startswith(f"{tmp_path}/b\\xe4r.png\n")
    assert outputs[1].read().startswith("inline: \\xe4\\udcff is neither a run's folder")


def test_too_little_memory_is_one_line(capsys, monkeypatch):
    def run_out(*_):
        raise MemoryError

    monkeypatch.setattr(List, "run", run_out)
    assert run(capsys, "list") == (2, "", "inline: there is not enough memory\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[data]".encode("utf-16"), "is not TOML: it is no UTF-8 text, invalid start byte at byte 0"),
        (b"\x93\0\xff", "is not TOML: it is no UTF-8 text"),
        (b"a = " + b"[" * 3000 + b"]" * 3000, "is not TOML: maximum recursion depth exceeded"),
    ],
)
def test_a_recipe_that_is_no_toml_is_named(capsys, tmp_path, content, message):
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    code, _, err = run(capsys, "train", "--recipe", str(path), "--dry-run")
    assert code == 2
    assert err.startswith(f"inline: {path} {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.args", 'checkpoint_path="some/file"'], "model.args: checkpoint_path is 'some/file', and model.pretrained"),
        (["--model.args", "a=" + "[" * 3000], "model.args must be like 'patch_size=4, depths=[1, 1]', got 'a=[["),
        (["--data.std", "0", "0", "0"], "data.std must be three positive numbers, got (0.0, 0.0, 0.0)"),
        (["--data.size", "65536", "65536"], "data.size: 65,536 x 65,536 pixels (width x height) are more than 16,777,216"),
    ],
)
def test_values_that_reach_too_far(capsys, words, message):
    code, _, err = run(capsys, "train", *words, "--dry-run")
    assert code == 2
    assert err.startswith(f"inline: {message}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("epochs", ["nan", "inf"])
def test_epochs_of_linearize_are_a_number(capsys, epochs):
    code, _, err = run(capsys, "linearize", "x", "--epochs", epochs)
    assert code == 2
    assert err.startswith(f"inline: --batch, --epochs and --rates must be positive, --steps not negative, got 64, {epochs}, ")


def write_weights(folder):
    """A file of weights of a small model that can stream."""
    model = timm.create_model("inline_deit_nano", depth=1, num_classes=3)
    about = {"model": "inline_deit_nano", "arguments": {"depth": 1, "num_classes": 3}, "classes": ["blue", "green", "red"]}
    (folder / "w.safetensors").write_bytes(to_bytes(model.state_dict(), about))
    return folder / "w.safetensors"


@pytest.mark.parametrize(
    ("way", "reason"),
    [("--stream", "pixels cannot be in 68 bytes: it is truncated"), ("--batch=2", "INLINE_MAX_PIXELS sets the limit")],
)
def test_an_image_that_claims_too_much_is_skipped(capsys, tmp_path, way, reason):
    bomb, good = tmp_path / "bomb.png", tmp_path / "good.png"
    bomb.write_bytes(claim(60_000, 60_000))
    Image.new("RGB", (40, 40)).save(good)
    words = ("predict", str(bomb), str(good), "--model", str(write_weights(tmp_path)), way)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert str(bomb) in err
    assert err.endswith(f"{reason} (--skip-bad goes on)\n")
    code, out, err = run(capsys, *words, "--skip-bad")
    assert (code, out.splitlines()[0]) == (0, str(good))
    assert "60,000 x 60,000 pixels" in err


@pytest.mark.filterwarnings("ignore")  # timm leaves the tar open
def test_weights_are_evaluated_on_a_tar(capsys, tmp_path):
    write_images(tmp_path / "data", 2)
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.add(tmp_path / "data", arcname=".")
    weights = write_weights(tmp_path)
    words = ("eval", str(weights), "--data", str(tmp_path / "data.tar"), "--json", "--out", str(tmp_path / "out"))
    code, out, _ = run(capsys, *words)
    assert (code, json.loads(out)["images"]) == (0, 6)


def test_an_option_of_several_values_is_given_once(capsys):
    """Twice, the first values would be lost without a word."""
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data.ignore", "11", "--data.ignore", "77", "--dry-run"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == "inline: --data.ignore is given 2 times: give all its values after one --data.ignore\n"
