"""The tables of docs/linearize.md are the stored results, and these are as good as they are said to be."""

import json
import re
from pathlib import Path

import pytest
from benchmarks.linearize_keep import EPOCHS, Run, chosen, collect, page_part

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "linearize.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def part_of(page, tag):
    """What is between the marks."""
    return re.search(rf"<!-- {tag} -->\n(.*?)<!-- /{tag} -->", page, re.DOTALL)[1]


def rows(tag, page=PAGE):
    table = part_of(page, tag).splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def stored(name, tag, page=PAGE, folder=RESULTS):
    """A record and its part of the page: both are there, or neither is; None without."""
    path = folder / name
    assert path.is_file() == bool(part_of(page, tag).strip()), f"{name} and the part {tag} of the page: one without the other"
    return json.loads(path.read_text()) if path.is_file() else None


def test_a_table_without_a_record_fails_and_a_record_without_a_table(tmp_path):
    table = "<!-- t -->\n| a |\n| --- |\n<!-- /t -->\n"
    empty = "<!-- t -->\n<!-- /t -->\n"
    assert stored("t.json", "t", empty, tmp_path) is None
    for page in (table, table.replace("| a |\n| --- |", "words only")):
        with pytest.raises(AssertionError, match="one without the other"):
            stored("t.json", "t", page, tmp_path)
    (tmp_path / "t.json").write_text("{}")
    assert stored("t.json", "t", table, tmp_path) == {}
    with pytest.raises(AssertionError, match="one without the other"):
        stored("t.json", "t", empty, tmp_path)


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


def kept_rows(page):
    table = [line for line in part_of(page, "linearize_keep").splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def check_kept(page, runs):
    told = kept_rows(page)
    assert len(told) == len(runs) > 0
    for shown, run in zip(told, runs, strict=True):
        assert shown[0] == (", ".join(map(str, run["blocks"])) or "none")
        assert len(run["blocks"]) == run["kept"]
        assert (f"seed {run.get('seed')}" in shown[1]) == ("seed" in run)
        numbers = (run["swapped"], run["top1"], run["agreement"])
        share = f"{100 * run['top1'] / run['teacher']:.1f}"
        assert shown[2:] == [f"{run['epochs']:g}", *(f"{number:.2f}" for number in numbers), share]
    draws = [tuple(run["blocks"]) for run in runs if run["kept"] and run["epochs"] == EPOCHS]
    assert len(draws) == len(set(draws))


def test_kept_blocks_on_the_page_are_the_runs_that_were_stored():
    record = stored("linearize_keep.json", "linearize_keep")
    if record is not None:
        check_kept(PAGE, record["runs"])


def write_run(folder, run, blocks, top1):
    """What `inline linearize` leaves of a run, as far as the benchmark reads it."""
    rows = [{"block": n, "name": f"b{n}", "error": 1.0 / n, "kept": n in blocks} for n in range(1, 7)]
    keep = {"kept": [f"b{n}" for n in blocks], "error": 0.5, "blocks": rows, "curve": [1.0, 0.5]} if blocks else None
    phase = {"top1": top1, "agreement": 80.0, "error": 0.3, "steps": 10, "seconds": 1.0}
    record = {"teacher": {"top1": 70.0}, "swapped": {"top1": 50.0}, "phases": [phase]}
    (folder / run.name).mkdir(parents=True)
    (folder / run.name / "linearize.json").write_text(json.dumps(record | ({"keep": keep} if keep else {})))
    if keep:
        (folder / run.name / "keep.json").write_text(json.dumps(keep))


def test_the_benchmark_of_kept_blocks_collects_runs_and_draws_other_blocks(tmp_path):
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "result.json").write_text(json.dumps({"top1": 70.0, "step": 100, "seconds": 9.0}))
    write_run(tmp_path, Run(1), [3], 66.0)
    write_run(tmp_path, Run(0), [], 60.0)
    write_run(tmp_path, Run(2), [1, 3], 67.0)
    for kept, automatic in ((1, [3]), (2, [1, 3])):
        draws = [chosen(tmp_path, Run(kept, seed)) for seed in (0, 1, 2)]
        assert automatic not in draws
        assert len({tuple(draw) for draw in draws}) == 3
        assert all(len(set(draw)) == kept and set(draw) <= set(range(1, 7)) for draw in draws)
        assert draws == [chosen(tmp_path, Run(kept, seed)) for seed in (0, 1, 2)]
    found = collect(tmp_path / "teacher", tmp_path)
    assert [run["blocks"] for run in found["runs"]] == [[3], [], [1, 3]]
    check_kept(f"<!-- linearize_keep -->\n{page_part(found)}<!-- /linearize_keep -->", found["runs"])


@pytest.mark.parametrize("part", [0, 1])
def test_saliency(part):
    found = json.loads((RESULTS / "saliency.json").read_text())["saliency"][part]
    told = rows("saliency")[3 * part : 3 * part + 3]
    for shown, (name, row) in zip(told, found["models"].items(), strict=True):
        numbers = (row["max_f_beta"], row["overlap"], row["absolute_error"], row["correlation_with_teacher"])
        assert shown == [str(found["side"]), str(row["images"]), name, *(f"{number:.3f}" for number in numbers)]


def test_saliency_with_kept_blocks():
    """Rows as in the table above them, without that of the teacher, once the run is stored."""
    record = stored("saliency_keep.json", "saliency_keep")
    if record is None:
        return
    told = rows("saliency_keep")
    found = [(part, name, part["models"][name]) for part in record["saliency"] for name in ("swap only", "linearized")]
    assert len(told) == len(found) > 0
    for shown, (part, name, row) in zip(told, found, strict=True):
        numbers = (row["max_f_beta"], row["overlap"], row["absolute_error"], row["correlation_with_teacher"])
        assert shown == [str(part["side"]), str(row["images"]), name, *(f"{number:.3f}" for number in numbers)]


def test_speed():
    found = json.loads((RESULTS / "saliency.json").read_text())["speed"]
    for shown, part in zip(rows("saliency_speed"), found, strict=True):
        best = part["best_ms"]
        times = [f"{best['softmax teacher']:,.0f}", f"{best['linearized']:,.0f}"]
        assert shown == [str(part["side"]), *times, f"{part['times_as_fast']:.2f}"]
