"""A program that imports once and forks a training run for each line that it reads: what a process costs is its imports.

A line is JSON: `recipe` and `out`, paths, and `die`, the number of the write to the disk in which the run kills itself, or 0.
It prints the run's process id at once, and its exit code when it has ended.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import pycocotools.cocoeval  # noqa: F401
import torch
import torch.utils.tensorboard
import torchmetrics.detection  # noqa: F401

from inline_attention.training import load_recipe
from inline_attention.training.run import run_training
from inline_attention.training.task import make_task


def die_while_writing(number):
    """Kill this process in its n-th fsync or rename from now on; a file that is being synced is cut in half first."""
    left = number

    def dying(function):
        def call(*arguments, **options):
            nonlocal left
            left -= 1
            if left == 0:
                if function is fsync and os.path.isfile(f"/proc/self/fd/{arguments[0]}"):  # noqa: PTH113
                    os.ftruncate(arguments[0], os.fstat(arguments[0]).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    fsync = os.fsync
    os.fsync, os.rename, os.replace = dying(os.fsync), dying(os.rename), dying(os.replace)


def run(asked):
    if asked["die"]:
        die_while_writing(asked["die"])
    out = Path(asked["out"])
    task = make_task(load_recipe(asked["recipe"]))
    run_training(task, out, resume=(out / "recipe.toml").is_file(), device="cpu")


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            try:
                run(json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        sys.stdout.write(f"{process}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])}\n")
        sys.stdout.flush()


main()
