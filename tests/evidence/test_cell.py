"""Keys: the same for the same computation, another for another; and records that are whole or not there."""

import pickle
from dataclasses import replace

import pytest

from inline_attention.evidence import code
from inline_attention.evidence.cell import Cell, Record, load_record, read_record
from inline_attention.evidence.claims import INLINE
from inline_attention.evidence.scale import SCALES, recipe_of
from inline_attention.training.recipe import DataPart

RECIPE = recipe_of(INLINE, SCALES["glance"], DataPart(source="digits"), 10, 0)
CELL = Cell("train", INLINE, RECIPE, "pictures")


def with_part(part, **changes):
    return replace(CELL, recipe=replace(RECIPE, **{part: replace(getattr(RECIPE, part), **changes)}))


@pytest.mark.parametrize(
    "other",
    [
        with_part("optim", lr=3e-3), with_part("schedule", steps=61), with_part("model", local=True), with_part("run", seed=1),
        with_part("augment", hflip=0.25), replace(CELL, data="others"), replace(CELL, kind="look"),
    ],
)  # fmt: skip
def test_another_computation_has_another_key(other):
    assert other.key != CELL.key


def test_where_pictures_are_does_not_count():
    moved = with_part("data", source="/elsewhere", workers=3)
    assert (moved.key, moved.recipe_hash) == (CELL.key, CELL.recipe_hash)
    seeded = with_part("run", seed=1)
    assert seeded.recipe_hash == CELL.recipe_hash


def test_code_counts_and_its_wording_does_not(tmp_path, monkeypatch):
    """Comments, docstrings and layout are not hashed; one changed constant is."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "evidence").mkdir()
    monkeypatch.setattr(code, "__file__", str(tmp_path / "evidence" / "code.py"))

    def version(text):
        (tmp_path / "ops" / "a.py").write_text(text)
        code.code_version.cache_clear()
        return code.code_version(("ops",))

    plain = version("def f(x):\n    return x + 1\n")
    assert version('"""A file."""\n\n\ndef f(x):\n    """Adds."""\n    return (x + 1)  # one\n') == plain
    assert version("def f(x):\n    return x + 2\n") != plain
    code.code_version.cache_clear()


def test_a_cell_keeps_the_code_that_it_was_planned_with(monkeypatch):
    """Another process may find other code on the disk; it was asked for a cell of this key."""
    sent = pickle.dumps(CELL)
    key, looked = CELL.key, replace(CELL, kind="look").key
    monkeypatch.setattr("inline_attention.evidence.cell.code_version", lambda rooms: "another")
    assert pickle.loads(sent).key == key
    assert replace(pickle.loads(sent), kind="look").key == looked
    assert replace(CELL, kind="look").training.key == key
    later = Cell("train", INLINE, RECIPE, "pictures")
    assert later.key != key
    assert replace(later, looker=CELL.looker, trainer=CELL.trainer).key == key


def test_what_looks_does_not_decide_a_training():
    other = replace(CELL, looker="another")
    assert other.key == CELL.key
    assert replace(other, kind="look").key != replace(CELL, kind="look").key
    assert replace(other, kind="look").code != other.code == CELL.code


def test_records_are_kept_and_failures_tried_again(tmp_path):
    done = Record("train", {"mixer": "inline"}, 0, "done", {"top1": 50.0}, 1.5, CELL.key, "hash", "code", {"torch": "2"})
    assert load_record(tmp_path, CELL.key) is None
    done.write(tmp_path)
    assert read_record(tmp_path, CELL.key) == done
    replace(done, status="failed").write(tmp_path)
    assert read_record(tmp_path, CELL.key) is None
    assert load_record(tmp_path, CELL.key).status == "failed"
    file = tmp_path / f"{CELL.key}.json"
    file.write_text(file.read_text()[:40])
    assert load_record(tmp_path, CELL.key) is None
    replace(done, key="another").write(tmp_path)
    (tmp_path / "another.json").rename(file)
    assert load_record(tmp_path, CELL.key) is None
