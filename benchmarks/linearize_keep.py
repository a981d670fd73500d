"""Linearize a model with none, one and two blocks kept, chosen automatically and at random; collect what was reached.

    python benchmarks/linearize_keep.py run --teacher runs/softmax --data cifar10 --out runs/keep
    python benchmarks/linearize_keep.py store --teacher runs/softmax --out runs/keep

`run` does one run after the other, leaves out what is done, resumes what was begun, and may be started again at any time.
`store` writes benchmarks/results/linearize_keep.json and .png and a part of docs/linearize.md from the runs that are done.

Random choices of k blocks: `random.Random(seed).sample` draws from all blocks until the draw is neither the automatic choice
of k nor the draw of an earlier seed; seeds 0, 1 and 2. All runs have the same length.
"""

import argparse
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from inline_attention.training.linearize_plots import draw_kept

ROOT = Path(__file__).parents[1]
RECORD, PAGE = ROOT / "benchmarks" / "results" / "linearize_keep.json", ROOT / "docs" / "linearize.md"
EPOCHS = 0.4
"""Few: the shorter the distillation, the more it matters what was kept."""
SEEDS = (0, 1, 2)


class Run(NamedTuple):
    """One run of `inline linearize`."""

    kept: int
    """How many blocks."""
    seed: int | None = None
    """Of the random choice; None for the automatic one."""
    epochs: float = EPOCHS

    @property
    def name(self) -> str:
        """Of its folder."""
        return "none" if not self.kept else f"auto-{self.kept}" if self.seed is None else f"random-{self.kept}-{self.seed}"


RUNS = (
    Run(1),
    Run(0),
    Run(2),
    *(Run(1, seed) for seed in SEEDS),
    *(Run(2, seed) for seed in SEEDS),
)
"""In the order of their worth."""


def chosen(folder: Path, run: Run) -> list[int]:
    """The blocks of a random choice, once the automatic choice of as many is known."""
    choice = json.loads((folder / Run(run.kept).name / "keep.json").read_text())
    numbers = [row["block"] for row in choice["blocks"]]
    found = [[row["block"] for row in choice["blocks"] if row["kept"]]]
    for seed in range((run.seed or 0) + 1):
        generator, draw = random.Random(seed), found[0]
        while draw in found:
            draw = sorted(generator.sample(numbers, run.kept))
        found.append(draw)
    return found[-1]


def train(run: Run, teacher: Path, data: Path, folder: Path) -> None:
    """Do a run, or resume it."""
    out = folder / run.name
    words = [sys.executable, "-m", "inline_attention", "linearize", "--out", str(out)]
    if (out / "options.json").is_file():
        words += ["--resume"]
    else:
        words += [str(teacher), "--data", str(data), "--rates", "1e-3", "1e-3", "1e-3", "--epochs", str(run.epochs)]
        if run.seed is not None:
            words += ["--keep", ",".join(map(str, chosen(folder, run))) + ",", "--keep-cost", "0"]
        elif run.kept:
            words += ["--keep", str(run.kept)]
    print(" ".join(words), flush=True)
    subprocess.run(words, check=True)


def collect(teacher: Path, folder: Path) -> dict[str, Any]:
    """What the runs that are done reached."""
    rows = []
    for run in RUNS:
        path = folder / run.name / "linearize.json"
        if not path.is_file():
            continue
        record = json.loads(path.read_text())
        keep, last = record.get("keep", {}), record["phases"][-1]
        rows.append(
            {
                **{key: value for key, value in run._asdict().items() if value is not None},
                "blocks": [row["block"] for row in keep.get("blocks", ()) if row["kept"]],
                "keep": keep,
                "teacher": record["teacher"]["top1"],
                "swapped": record["swapped"]["top1"],
                **{name: last[name] for name in ("top1", "agreement", "error")},
                "steps": sum(phase["steps"] for phase in record["phases"]),
                "seconds": sum(phase["seconds"] for phase in record["phases"]),
            }
        )
    result = json.loads((teacher / "result.json").read_text())
    return {"teacher_run": {key: result[key] for key in ("top1", "step", "seconds")}, "runs": rows}


def page_part(found: dict[str, Any]) -> str:
    """The part of the page: a sentence, the table, the figure."""
    titles = ("blocks kept", "chosen", "epochs", "swap only, %", "distilled, %", "agreement %", "% of the teacher's accuracy")
    lines = [about(found), "", f"| {' | '.join(titles)} |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in found["runs"]:
        how = "" if not row["kept"] else "automatically" if "seed" not in row else f"at random, seed {row['seed']}"
        numbers = (row["swapped"], row["top1"], row["agreement"])
        cells = [", ".join(map(str, row["blocks"])) or "none", how, f"{row['epochs']:g}", *(f"{n:.2f}" for n in numbers)]
        share = f"{100 * row['top1'] / row['teacher']:.1f}"
        lines.append(f"| {' | '.join([*cells, share])} |")
    picture = '<img src="../benchmarks/results/linearize_keep.png" width="700" alt="Output error by block, and by blocks kept">'
    return "\n".join([*lines, "", picture]) + "\n"


def about(found: dict[str, Any]) -> str:
    """The sentence above the table."""
    teacher = found["teacher_run"]
    return (
        f"With blocks kept, by short runs of {EPOCHS:g} epochs, from another teacher of the same recipe, trained for "
        f"{teacher['step']:,} steps ({teacher['top1']:.2f} %); random choices are neither the automatic one nor each other "
        "([`benchmarks/linearize_keep.py`]"
        "(../benchmarks/linearize_keep.py), [the record](../benchmarks/results/linearize_keep.json)):"
    )


def main() -> None:
    """Run or store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "store"))
    parser.add_argument("--teacher", type=Path, required=True, help="the run of the softmax model")
    parser.add_argument("--data", type=Path, help="its images, in class folders")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--first", type=int, default=len(RUNS), help="do only so many runs of the list")
    args = parser.parse_args()
    if args.what == "run":
        for run in RUNS[: args.first]:
            if not (args.out / run.name / "linearize.json").is_file():
                train(run, args.teacher, args.data, args.out)
        return
    found = collect(args.teacher, args.out)
    if not found["runs"]:
        sys.exit(f"no run in {args.out} is done")
    if keep := next((row["keep"] for row in found["runs"] if row["keep"]), None):
        draw_kept(keep, RECORD.with_suffix(".png"))
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
    mark = r"(<!-- linearize_keep -->\n).*?(<!-- /linearize_keep -->)"
    PAGE.write_text(re.sub(mark, lambda match: match[1] + page_part(found) + match[2], PAGE.read_text(), flags=re.DOTALL))
    print(page_part(found))


if __name__ == "__main__":
    main()
