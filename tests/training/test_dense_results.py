"""The tables of docs/dense.md are the stored results, and these are as good as they are said to be."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "dense.md").read_text()
FOUND = json.loads((ROOT / "benchmarks" / "results" / "dense_runs.json").read_text())


def rows(tag):
    table = re.search(rf"<!-- {tag} -->\n(.*?)<!-- /{tag} -->", PAGE, re.DOTALL)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("row", range(4))
def test_pets(row):
    run, told = list(FOUND["pets"]["runs"].values())[row], rows("pets")[row]
    last = run["evaluations"][-1]
    shown = [f"{last[name]:.2f}" for name in ("miou", "macc", "aacc")]
    assert told[3:] == [f"{run['parameters']:,}", *shown, f"{last['seconds'] / 60:.0f}"]
    assert last["miou"] >= 70
    assert last["seconds"] <= 40 * 60
    assert ("softmax" in told[2]) == ("--model.mixer softmax" in run["command"])


@pytest.mark.parametrize("row", range(2))
def test_coco128(row):
    (head, run), told = list(FOUND["coco128"]["runs"].items())[row], rows("coco128")[row]
    last = run["evaluations"][-1]
    names = [f"{kind}_{name}" for kind in ("mask", "box") for name in ("ap", "ap50", "ap75")]
    shown = [f"{last[name]:.1f}" for name in names]
    assert told == [head, f"{run['parameters']:,}", str(last["epoch"]), *shown, f"{last['seconds'] / 60:.0f}"]
    assert last["mask_ap50"] >= 50
    assert last["seconds"] <= 60 * 60
    assert ("cascade" in run["command"]) == (head == "cascade_mask_rcnn")
