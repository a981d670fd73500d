"""The way of the data is short: few files between the command and the weights, and each thing is opened once."""

import sys
from collections import Counter
from pathlib import Path

import pytest

import inline_attention
import inline_command
from inline_attention.cli.main import main
from inline_attention.cli.train import Train
from inline_attention.data import sources
from inline_attention.training import load_trained as trained
from inline_attention.training.engine import Engine

from .small import write_images

PACKAGE = Path(inline_attention.__file__).parent
COMMAND = inline_command.__file__
MODEL = ("ops/", "layers/", "models/", "compat.py")
"""The model itself, whose own walk `tests/models` counts."""
TO_WEIGHTS = 29
"""Files with a function that runs, src/inline_command.py included, from `inline train --data DIR` to best.safetensors."""
ONE_STEP = 7
"""Of these, in one optimizer step: reading a batch, the loss, the update."""


class Walk:
    """Notes the files of the package whose functions run, besides those that run while modules are imported."""

    def __init__(self):
        self.files, self.step, self.importing, self.stepping, self.on = set(), set(), 0, 0, True

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith((str(PACKAGE), COMMAND)):
            return
        change = 1 if event == "call" else -1
        if code.co_name == "<module>":
            self.importing += change
        elif code is Engine._step.__code__:
            self.stepping += change
        inside = code.co_filename != COMMAND
        file = str(Path(code.co_filename).relative_to(PACKAGE if inside else PACKAGE.parent))
        if event == "call" and not self.importing and self.on and code.co_name != "<module>" and not file.startswith(MODEL):
            self.files.add(file)
            if self.stepping:
                self.step.add(file)


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    """The command on a small folder, up to the end of training, and how often the images were opened."""
    folder = tmp_path_factory.mktemp("walk")
    write_images(folder / "data", 20)
    noted, opened = Walk(), Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_from_files", "create_reader"):
            real = getattr(sources, name)
            patch.setattr(sources, name, lambda *a, _name=name, _real=real, **k: (opened.update([_name]), _real(*a, **k))[1])
        finish = Train._finish

        def finish_unnoted(*arguments):
            noted.on = False  # what is drawn of a finished run is no part of the walk; openings count to the end
            finish(*arguments)

        patch.setattr(Train, "_finish", finish_unnoted)
        patch.setattr(sys, "argv", [
            "inline", "train", "--data", str(folder / "data"), "--out", str(folder / "run"), "--schedule.epochs", "1",
            "--data.workers", "0", "--device", "cpu",
        ])  # fmt: skip
        sys.setprofile(noted)
        try:
            inline_command.main()
        finally:
            sys.setprofile(None)
    assert (folder / "run" / "best.safetensors").is_file()
    return noted, opened, folder


def test_from_the_command_to_the_weights(walk):
    files = sorted(walk[0].files)
    assert len(files) <= TO_WEIGHTS, "\n".join(files)
    assert {"inline_command.py", "cli/main.py", "cli/train.py", "training/engine.py", "data/loader.py"} <= set(files)


def test_one_step(walk):
    files = sorted(walk[0].step)
    assert len(files) <= ONE_STEP, "\n".join(files)
    assert {"training/engine.py", "training/classify.py", "data/loader.py"} <= set(files)


def test_images_are_opened_once(walk):
    """To choose the recipe, and never again: one listing of the folder, by one of timm's readers."""
    assert walk[1] == {"_from_files": 1, "create_reader": 1}


def test_options_that_change_the_split_open_other_images(tmp_path, monkeypatch):
    write_images(tmp_path / "data", 20)
    sizes = []
    monkeypatch.setattr("inline_attention.cli.train.Train._finish", lambda _, outcome, task: sizes.append(outcome.source))
    words = ["train", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--schedule.epochs", "1"]
    main([*words, "--data.workers", "0", "--device", "cpu", "--data.val-share", "0.5"])
    assert (len(sizes[0].train), len(sizes[0].val)) == (30, 30)


def test_metadata_of_weights_is_read_once(walk, monkeypatch):
    """Whoever asks: which task a file is of, then its model; the tensors are read once, too."""
    weights = walk[2] / "run" / "best.safetensors"
    trained._read_metadata.cache_clear()
    opened, real = Counter(), trained.safe_open
    monkeypatch.setattr(trained, "safe_open", lambda path, *rest: (opened.update(["metadata"]), real(path, *rest))[1])
    read = trained.read_checkpoint
    monkeypatch.setattr(trained, "read_checkpoint", lambda path: (opened.update(["weights"]), read(path))[1])
    assert trained.task_named(str(weights)) == "classify"
    trained.load_trained(str(weights.parent))
    assert opened == {"metadata": 1, "weights": 1}
    weights.with_name("copy.safetensors").write_bytes(weights.read_bytes())
    trained.metadata_of(weights.with_name("copy.safetensors"))
    assert opened["metadata"] == 2
