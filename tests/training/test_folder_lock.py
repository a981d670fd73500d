"""One process writes into a folder; a second is told who that is; a killed one leaves the folder free."""

import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial

import pytest

from inline_attention.cli.main import main
from inline_attention.training import folder_lock
from inline_attention.training.classify import Classify
from inline_attention.training.folder_lock import LOCK, lock_folder
from inline_attention.training.run import run_training

from .small import small_recipe, write_images

HOLDER = """
import importlib.util, os, pathlib, sys, time
spec = importlib.util.spec_from_file_location("folder_lock", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.lock_folder(pathlib.Path(sys.argv[2])):
    child = os.fork()  # as a process that reads images
    if child:
        print(child, flush=True)
    time.sleep(60)
"""


def in_use(folder, pid):
    host = re.escape(socket.gethostname())
    said = rf"is in use by process {pid} on {host} since \d{{4}}-.*: wait for it, or choose another folder$"
    return pytest.raises(ValueError, match=rf"^{re.escape(str(folder))} {said}")


def test_a_killed_process_leaves_the_folder_free(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder_lock.__file__, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    child = int(holder.stdout.readline())
    try:
        with in_use(tmp_path, holder.pid), lock_folder(tmp_path):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(child, 0)  # which is still there, and holds nothing
        with lock_folder(tmp_path):
            assert f'"pid": {os.getpid()}' in (tmp_path / LOCK).read_text()
    finally:
        holder.kill()
        os.kill(child, signal.SIGKILL)
        holder.stdout.close()
    assert not list(tmp_path.iterdir()), "nothing is left in the folder"


def test_what_writes_into_a_folder_over_time_locks_it(tmp_path, capsys):
    data = write_images(tmp_path / "data", 12)
    out = tmp_path / "out"
    train = partial(run_training, Classify(small_recipe(data, schedule={"epochs": 1, "warmup": 0})), out, device="cpu")
    with lock_folder(out):
        for resume in (False, True):
            with in_use(out, os.getpid()):
                train(resume=resume)
        words = ["speed", "--scale", "glance", "--seeds", "1", "--data", "digits", "--device", "cpu"]
        with pytest.raises(SystemExit):
            main(["reproduce", *words, "--out", str(out)])
        assert f"{out} is in use by process {os.getpid()}" in capsys.readouterr().err
        assert sorted(path.name for path in out.iterdir()) == [LOCK, "trials"]
    (out / "trials").rmdir()
    assert train().finished
    assert not (out / LOCK).exists()


def test_where_there_are_no_locks_nothing_is_locked(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(folder_lock, "_lock", refuse)
    with lock_folder(tmp_path), lock_folder(tmp_path):
        assert not (tmp_path / LOCK).exists()
