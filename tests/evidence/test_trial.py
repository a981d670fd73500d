"""Keys: equal for equal computations only; and records that are complete or absent."""

import pickle
from dataclasses import replace

import pytest

from inline_attention.data.config import DataConfig
from inline_attention.evidence import code_hash
from inline_attention.evidence.claims import INLINE
from inline_attention.evidence.scale import SCALES, recipe_of
from inline_attention.evidence.trial import Record, Trial, load_finished_record, load_record

RECIPE = recipe_of(INLINE, SCALES["glance"], DataConfig(source="digits"), 10, 0)
TRIAL = Trial("train", INLINE, RECIPE, "images")


def with_part(part, **changes):
    return replace(TRIAL, recipe=replace(RECIPE, **{part: replace(getattr(RECIPE, part), **changes)}))


@pytest.mark.parametrize(
    "other",
    [
        with_part("optim", lr=3e-3), with_part("schedule", steps=61), with_part("model", local=True), with_part("run", seed=1),
        with_part("augment", hflip=0.25), replace(TRIAL, data="others"), replace(TRIAL, kind="analyze"),
    ],
)  # fmt: skip
def test_another_computation_has_another_key(other):
    assert other.key != TRIAL.key


def test_the_location_of_images_does_not_change_the_key():
    moved = with_part("data", source="/elsewhere", workers=3)
    assert (moved.key, moved.recipe_hash) == (TRIAL.key, TRIAL.recipe_hash)
    seeded = with_part("run", seed=1)
    assert seeded.recipe_hash == TRIAL.recipe_hash


def test_the_hash_ignores_comments_and_docstrings(tmp_path, monkeypatch):
    """Comments, docstrings and layout are not hashed; one changed constant is."""
    (tmp_path / "ops").mkdir()
    (tmp_path / "evidence").mkdir()
    monkeypatch.setattr(code_hash, "__file__", str(tmp_path / "evidence" / "code_hash.py"))

    def hash_of(text):
        (tmp_path / "ops" / "a.py").write_text(text)
        code_hash.code_hash.cache_clear()
        return code_hash.code_hash(("ops",))

    plain = hash_of("def f(x):\n    return x + 1\n")
    assert hash_of('"""A file."""\n\n\ndef f(x):\n    """Adds."""\n    return (x + 1)  # one\n') == plain
    assert hash_of("def f(x):\n    return x + 2\n") != plain
    code_hash.code_hash.cache_clear()


def test_a_trial_keeps_the_code_that_it_was_planned_with(monkeypatch):
    """Another process may find other code on the disk; it was asked for a trial of this key."""
    sent = pickle.dumps(TRIAL)
    key, analyzed = TRIAL.key, replace(TRIAL, kind="analyze").key
    monkeypatch.setattr("inline_attention.evidence.trial.code_hash", lambda rooms: "another")
    assert pickle.loads(sent).key == key
    assert replace(pickle.loads(sent), kind="analyze").key == analyzed
    assert replace(TRIAL, kind="analyze").training.key == key
    later = Trial("train", INLINE, RECIPE, "images")
    assert later.key != key
    assert replace(later, analysis_code_hash=TRIAL.analysis_code_hash, training_code_hash=TRIAL.training_code_hash).key == key


def test_analysis_code_does_not_change_the_key_of_a_training():
    other = replace(TRIAL, analysis_code_hash="another")
    assert other.key == TRIAL.key
    assert replace(other, kind="analyze").key != replace(TRIAL, kind="analyze").key
    assert replace(other, kind="analyze").code != other.code == TRIAL.code


def test_records_are_stored_and_failed_trials_run_again(tmp_path):
    done = Record("train", {"mixer": "inline"}, 0, "done", {"top1": 50.0}, 1.5, TRIAL.key, "hash", "code", {"torch": "2"})
    assert load_record(tmp_path, TRIAL.key) is None
    done.write(tmp_path)
    assert load_finished_record(tmp_path, TRIAL.key) == done
    replace(done, status="failed").write(tmp_path)
    assert load_finished_record(tmp_path, TRIAL.key) is None
    assert load_record(tmp_path, TRIAL.key).status == "failed"
    file = tmp_path / f"{TRIAL.key}.json"
    file.write_text(file.read_text()[:40])
    assert load_record(tmp_path, TRIAL.key) is None
    replace(done, key="another").write(tmp_path)
    (tmp_path / "another.json").rename(file)
    assert load_record(tmp_path, TRIAL.key) is None
