"""A checkpoint is whole or not there, and what was there before is not lost."""

import json
import os
import resource
import signal

import pytest
import torch

from inline_attention.training import checkpoint
from inline_attention.training.checkpoint import last_checkpoint, save_checkpoint, to_bytes, write_atomically


def save(folder, step):
    parts = {"model": to_bytes({"w": torch.full((1000,), float(step))}, {"model": "x"})}
    return save_checkpoint(folder, {"step": step}, parts)


def test_the_last_two_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 3, 10):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000010"]
    found = last_checkpoint(tmp_path, print)
    assert found.step == 10
    assert torch.equal(found.tensors("model")["w"], torch.full((1000,), 10.0))


@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "state", "no state", "null", "list"])
def test_a_broken_checkpoint_is_reported_and_skipped(tmp_path, damage):
    save(tmp_path, 1)
    last = save(tmp_path, 2)
    file, data = last / "model.safetensors", (last / "model.safetensors").read_bytes()
    if damage == "cut":
        file.write_bytes(data[:-5])
    elif damage == "flip":
        file.write_bytes(data[:-5] + bytes([data[-5] ^ 4]) + data[-4:])
    elif damage == "gone":
        file.unlink()
    elif damage == "state":
        (last / "state.json").write_text('{"step": 2, "fil')
    elif damage == "null":
        (last / "state.json").write_text("null")
    elif damage == "list":
        (last / "state.json").write_text('{"files": {"a": 3}}')
    else:
        (last / "state.json").unlink()
    said = []
    found = last_checkpoint(tmp_path, said.append)
    assert found.step == 1
    assert len(said) == 1
    assert said[0].startswith(f"{last} is broken (")
    save(tmp_path, 2)
    assert last_checkpoint(tmp_path, said.append).step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken-step-00000002", "step-00000001", "step-00000002"]


def test_no_checkpoint_yet(tmp_path):
    assert last_checkpoint(tmp_path, print) is None


@pytest.fixture
def full_disk():
    """No file may grow beyond 1,000 bytes: the system itself refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_loses_nothing(tmp_path, full_disk):
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    first = save(tmp_path, 1)
    write_atomically(tmp_path / "best.safetensors", b"good")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    with pytest.raises(OSError, match=r"cannot write .*step-00000002: File too large; the checkpoints before it are untouched"):
        save(tmp_path, 2)
    with pytest.raises(OSError, match=r"cannot write .*best.safetensors: File too large; what was there before is untouched"):
        write_atomically(tmp_path / "best.safetensors", bytes(2000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.safetensors", first.name]
    assert (tmp_path / "best.safetensors").read_bytes() == b"good"
    assert last_checkpoint(tmp_path, print).step == 1


def test_old_checkpoints_are_removed_after_the_new_one_is_written(tmp_path, monkeypatch):
    save(tmp_path, 1)
    save(tmp_path, 2)
    seen = []
    rename = type(tmp_path).rename

    def watched(path, target):
        seen.append(sorted(p.name for p in tmp_path.glob("step-*")))
        return rename(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", watched)
    save(tmp_path, 3)
    assert seen == [["step-00000001", "step-00000002"]]


def test_files_are_synced_before_the_rename(tmp_path, monkeypatch):
    """fsync of every file comes before the rename, and the folder's after it."""
    events = []
    fsync, rename = os.fsync, type(tmp_path).rename
    monkeypatch.setattr(checkpoint.os, "fsync", lambda handle: (events.append("sync"), fsync(handle))[1])
    monkeypatch.setattr(type(tmp_path), "rename", lambda path, target: (events.append("rename"), rename(path, target))[1])
    save(tmp_path, 1)
    assert events == ["sync", "sync", "sync", "rename", "sync"]
    assert json.loads((tmp_path / "step-00000001" / "state.json").read_text())["step"] == 1
