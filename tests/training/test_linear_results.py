"""The tables of docs/linearize.md are the stored results, and these are as good as they are said to be."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "linearize.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def rows(tag):
    table = re.search(rf"<!-- {tag} -->\n(.*?)<!-- /{tag} -->", PAGE, re.DOTALL)[1].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_cifar10():
    found = json.loads((RESULTS / "linearize.json").read_text())
    record, run, told = found["record"], found["teacher_run"], rows("linearize")
    lines = [{**record["teacher"], **run, "steps": run["step"]}, {**record["swapped"], "steps": 0, "seconds": 0.0}]
    lines += record["phases"]
    assert len(told) == len(lines) == 5
    for shown, line in zip(told, lines, strict=True):
        numbers = [f"{line['top1']:.2f}", f"{line['agreement']:.2f}", f"{line['error']:.3f}"]
        assert shown[1:] == [*numbers, f"{line['steps']:,}", f"{line['seconds'] / 60:.1f}"]
    last = record["phases"][-1]
    assert last["top1"] >= 0.98 * record["teacher"]["top1"]
    assert sum(phase["seconds"] for phase in record["phases"]) <= 0.25 * run["seconds"]
    assert record["swapped"]["top1"] < last["top1"]


@pytest.mark.parametrize("part", [0, 1])
def test_saliency(part):
    found = json.loads((RESULTS / "saliency.json").read_text())["saliency"][part]
    told = rows("saliency")[3 * part : 3 * part + 3]
    for shown, (name, row) in zip(told, found["models"].items(), strict=True):
        numbers = (row["max_f_beta"], row["overlap"], row["absolute_error"], row["correlation_with_teacher"])
        assert shown == [str(found["side"]), str(row["images"]), name, *(f"{number:.3f}" for number in numbers)]


def test_speed():
    found = json.loads((RESULTS / "saliency.json").read_text())["speed"]
    for shown, part in zip(rows("saliency_speed"), found, strict=True):
        best = part["best_ms"]
        times = [f"{best['softmax teacher']:,.0f}", f"{best['linearized']:,.0f}"]
        assert shown == [str(part["side"]), *times, f"{part['times_as_fast']:.2f}"]
