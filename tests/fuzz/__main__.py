"""`python -m tests.fuzz`: malformed inputs for all commands, for as long as asked for."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .cases import keep_case
from .targets import TARGETS

ROOT = Path(__file__).parents[2]


def fuzz(seed: str, first: int, last: int, seconds: float, folder: Path) -> Iterator[dict[str, Any]]:
    """Run cases in a child process, and in another one if it dies; yields the outcome of each."""
    until = time.monotonic() + seconds
    settings = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with tempfile.TemporaryDirectory() as work:
        while first < last and (left := until - time.monotonic()) > 0:
            words = [sys.executable, "-m", "tests.fuzz.child", seed, str(first), str(last), str(left), str(folder)]
            begun: dict[str, Any] = {}
            with subprocess.Popen(words, cwd=work, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True) as child:
                for line in child.stdout or ():
                    told = json.loads(line)
                    begun = told if "problem" not in told else {}
                    first = told["number"] + 1
                    if not begun:
                        yield told
            if not child.returncode:
                return
            if not begun:
                raise RuntimeError(f"the cases could not be run: exit code {child.returncode}")
            text = f"the process ended with {child.returncode}"
            os.chdir(work)
            keep_case(seed, begun["number"], folder, text)
            os.chdir(ROOT)
            yield {**begun, "memory": 0, "code": child.returncode, "problem": text}


def main() -> int:
    """Run, print what failed and how to repeat it, and a summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    take = os.environ.get
    parser.add_argument("--seed", default=take("FUZZ_SEED") or str(random.randrange(10**6)), help="$FUZZ_SEED, or a random one")
    parser.add_argument(
        "--seconds", type=float, default=float(take("FUZZ_SECONDS") or 600), help="$FUZZ_SECONDS, or ten minutes"
    )
    parser.add_argument(
        "--cases", type=int, default=int(take("FUZZ_CASES") or 10**9), help="$FUZZ_CASES, or as many as there is time for"
    )
    parser.add_argument("--case", type=int, help="run only the case of this number")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="folder for the inputs that failed")
    options = parser.parse_args()
    folder = options.keep.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", flush=True)
    began, outcomes = time.monotonic(), []
    first, last = (-len(TARGETS), options.cases) if options.case is None else (options.case, options.case + 1)
    for found in fuzz(options.seed, first, last, options.seconds, folder):
        outcomes.append(found)
        with (folder / "cases.jsonl").open("a") as log:
            log.write(json.dumps(found) + "\n")
        if found["problem"]:
            print(
                f"case {found['number']}: {found['problem']}\n    {folder / format(found['number'], '05d')}/repeat.txt",
                flush=True,
            )
    malformed = [one for one in outcomes if one["number"] >= 0]
    failed = [one for one in outcomes if one["problem"]]
    memory = max((one["memory"] for one in outcomes), default=0)
    codes = {code: sum(one["code"] == code for one in malformed) for code in (0, 2)}
    counts = f"{len(malformed)} malformed inputs, {len(outcomes) - len(malformed)} valid ones, {len(failed)} failed"
    print(f"{counts}, in {time.monotonic() - began:.0f} s and {memory / 2**30:.2f} GB")
    print(f"Of the malformed inputs, {codes[0]} ended with exit code 0, and {codes[2]} with 2")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
