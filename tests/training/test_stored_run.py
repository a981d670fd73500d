"""A run folder that the first version wrote and did not finish: it is used, and resumed to the same end.

It was stopped after step 66 of 88 (`tests/stored/run_0_1`); `run_0_1.csv` is the table of the same run when it was not.
"""

import csv
import json
import shutil
from pathlib import Path

import pytest

from inline_attention.cli.main import main
from inline_attention.training import train
from inline_attention.training.load_trained import load_trained, metadata_of
from inline_attention.training.recipe import RENAMED_FIELDS
from inline_attention.training.run_folder import RENAMED_KEYS, RunFolder

STORED = Path(__file__).parents[1] / "stored" / "run_0_1"


def rows_of(path: Path) -> list[dict[str, float]]:
    return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(path.read_text().splitlines())]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "run"
    shutil.copytree(STORED, folder)
    return train(out=folder, resume=True, device="cpu")


def test_the_stored_run_has_the_old_names():
    """Else the test would show nothing."""
    assert "view = " in (STORED / "recipe.toml").read_text()
    assert "pictures_per_second" in (STORED / "metrics.jsonl").read_text()
    state = json.loads((STORED / "checkpoints" / "step-00000066" / "state.json").read_text())
    assert "pictures" in state["progress"]["best"]
    assert "view" in metadata_of(STORED / "best.safetensors")["data"]


def test_its_weights_load():
    trained = load_trained(str(STORED))
    assert (trained.name, trained.data.crop_mode, len(trained.classes)) == ("inline_deit_nano", "squash", 10)
    assert RunFolder(STORED).recipe().data.crop_mode == "squash"


def test_it_resumes_to_the_same_end(resumed):
    assert resumed.finished
    assert resumed.metrics["step"] == 88
    for found, expected in zip(rows_of(resumed.folder / "metrics.csv"), rows_of(STORED.with_name("run_0_1.csv")), strict=True):
        for name in expected.keys() - {"seconds"}:
            assert found[name] == pytest.approx(expected[name], rel=1e-5), (name, expected["epoch"])


def test_old_and_new_lines_have_the_same_names(resumed):
    """So reports read them alike, and the files of the resumed run have no old name left."""
    for kind in ("training", "evaluation"):
        assert len({tuple(row) for row in resumed.rows if row["kind"] == kind}) == 1
    assert resumed.best["images"] == 359
    shutil.rmtree(resumed.folder / "checkpoints" / "step-00000066")  # of the first version, and the last but one
    texts = [file.read_text() for name in ("*.toml", "*.json*") for file in resumed.folder.rglob(name)]
    assert not [name for name in RENAMED_KEYS for text in texts if f'"{name}"' in text]
    assert not [name for name in RENAMED_FIELDS for text in texts if f"\n{name.partition('.')[2]} = " in text]


def test_the_command_resumes_and_reports_it(tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(STORED, folder)
    main(["train", "--resume", "--out", str(folder), "--device", "cpu"])
    told = capsys.readouterr()
    assert "from step 66" in told.err
    assert "images/s" in told.out
    assert (folder / "curve.png").is_file()
    assert json.loads((folder / "result.json").read_text())["images"] == 359
