"""`inline reproduce`: the paper's claims, measured."""

import io
import json
import os
import sys
from collections.abc import Container, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .progress import track

if TYPE_CHECKING:
    from ..evidence.cell import Record
    from ..evidence.claims import Claim
    from ..evidence.grid import Grid
    from ..evidence.results import Results
    from ..evidence.scale import Scale
    from ..evidence.statistics import Estimate
    from ..training.recipe import DataPart


@dataclass(frozen=True)
class Reproduce:
    """Train small models to see which of the paper's claims hold, with seeds and intervals, and where they do not."""

    claims: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which claims: kernels, windows, mixers, families, seeing, speed, resolution, width, length; unset: all."""
    data: str | None = None
    """Any source of `inline train`; unset: fashion-mnist where it is installed, else digits."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    scale: str | None = None
    """glance, hour, laptop, day or week; imagenet: the paper's recipes. Unset: that of --out, or what the budget allows."""
    budget: str | None = None
    """How long all of it may take, such as 30m, 2h or 1d: the largest scale is taken that is expected to; unset: 1h."""
    seeds: int = 3
    """Seeds, shared by all contenders; with fewer than 3 there is no verdict."""
    jobs: int | None = None
    """Cells side by side; unset: one for each core, or for each GPU."""
    out: Path = Path("reproduce")
    """Folder for results.json, results.md, figures, and cells (one model, one seed), each of which is computed once: the same
    command goes on where it was stopped."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Run nothing: write the page and the figures of this results.json, or of a folder that has one, into --out."""
    known: Path | None = None
    """A results.json of an earlier run, or of another machine: its cells are not computed again."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    dry_run: bool = False
    """Only tell the scale, the cells, and about how long they take."""
    json: bool = False
    """Print the verdicts as JSON."""

    def run(self) -> None:
        """Choose, run what is not there yet, report."""
        from ..evidence.cell import read_record
        from ..evidence.claims import CLAIMS
        from ..evidence.grid import grid_of
        from ..evidence.results import read_results
        from ..evidence.run_cell import place_of

        claims = self._claims()
        if self.out.is_file():
            raise ValueError(f"--out must be a folder, and {self.out} is a file")
        if self.source is not None:
            self._report_from(self.source / "results.json" if self.source.is_dir() else self.source, claims)
            return
        if self.seeds < 1:
            raise ValueError(f"--seeds must be positive, got {self.seeds}")
        jobs = self._jobs()
        data = self._data()
        before = read_results(self._file) if self._file.is_file() else None
        earlier = [] if self.known is None else [one for one in read_results(self.known).records if one.status != "failed"]
        scale = self._scale(claims, data, jobs, before)
        cells = self.out / "cells"
        grid = self._plan(claims, scale, data, jobs, {record.key for record in earlier})
        if self.dry_run:
            return
        prepare_folder(cells)
        for record in earlier:
            if read_record(cells, record.key) is None:
                record.write(cells)
        names = {claim.name for claim in claims} | set(before.claims if before is not None else ())
        reported = [claim for name, claim in CLAIMS.items() if name in names]  # what the folder had before stays in the report
        everything = grid_of(reported, scale, data, self.seeds, str(place_of(self.device)))
        self._write(_collect(reported, scale, data, self.seeds, everything, cells))  # says what the folder is for
        done = self._run(grid, cells, jobs)
        results = _collect(reported, scale, data, self.seeds, everything, cells)
        self._write(results)
        self._report(results)
        if not done:
            _say("Stopped and saved: this is what there is so far. The same command goes on.")
            sys.exit(130)

    @property
    def _file(self) -> Path:
        return self.out / "results.json"

    def _write(self, results: "Results") -> None:
        from ..training.checkpoint import write_whole

        write_whole(self._file, results.to_json().encode())

    def _report_from(self, file: Path, claims: list["Claim"]) -> None:
        """The page and the figures of a file, of all its claims or of those that were asked for."""
        from ..evidence.results import read_results

        results = read_results(file)
        if self.claims:
            for claim in claims:
                if claim.name not in results.claims:
                    raise ValueError(f"{file} has no claim {claim.name!r}; it has: {', '.join(results.claims)}")
            results = replace(results, claims=[claim.name for claim in claims])
        prepare_folder(self.out)
        self._report(results)

    def _claims(self) -> list["Claim"]:
        from ..evidence.claims import CLAIMS
        from ..training.recipe import nearest

        for name in self.claims:
            if name not in CLAIMS:
                raise ValueError(f"unknown claim {name!r}{nearest(name, CLAIMS)}; there are: {', '.join(CLAIMS)}")
        return [CLAIMS[name] for name in dict.fromkeys(self.claims or CLAIMS)]

    def _data(self) -> "DataPart":
        from ..training.recipe import DataPart
        from ..training.source import FASHION, NAMED, open_source

        source = self.data or ("fashion-mnist" if FASHION.is_dir() else "digits")
        if source not in NAMED and Path(source).exists():
            source = str(Path(source).resolve())
        data = DataPart(source=source, root=self.root)
        open_source(data)  # what is wrong with it is told before anything else
        return data

    def _jobs(self) -> int:
        import torch

        from ..evidence.pool import cores

        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"--jobs must be positive, got {self.jobs}")
        there = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
        if self.device not in ("auto", "cpu", there):
            raise ValueError(f"unknown device {self.device!r}; this machine has: {', '.join(dict.fromkeys(['cpu', there]))}")
        if "RANK" in os.environ:
            raise ValueError("one cell runs on each GPU, or core, by itself: start `inline reproduce` without a launcher")
        on_cores = self.device == "cpu" or there == "cpu"
        return self.jobs or (cores() if on_cores else torch.accelerator.device_count())

    def _scale(self, claims: list["Claim"], data: "DataPart", jobs: int, before: "Results | None") -> "Scale":
        """The scale that was asked for, that the folder has, or that the budget allows; told with the reason."""
        from ..evidence.budget import choose_scale, parse_budget
        from ..evidence.run_cell import place_of
        from ..evidence.scale import IMAGENET, SCALES
        from ..training.recipe import nearest

        budget = parse_budget(self.budget or "1h")
        known = {**SCALES, IMAGENET.name: IMAGENET}
        if self.scale is not None and self.scale not in known:
            raise ValueError(f"unknown scale {self.scale!r}{nearest(self.scale, known)}; there are: {', '.join(known)}")
        if self.scale is not None:
            scale, why = known[self.scale], "as asked"
        elif before is not None and self.budget is None:
            scale, why = known[before.scale], f"as before in {self.out}"
        else:
            _say("Timing a few steps of each kind of model to choose a scale")
            scale, seconds = choose_scale(claims, data, self.seeds, jobs, budget, str(place_of(self.device)))
            within = f"the largest within {self.budget or 'an hour'}"
            why = within if seconds <= budget else f"the smallest, though it takes longer than {self.budget or 'an hour'}"
        if before is not None and (before.scale, before.data["name"]) != (scale.name, Path(data.source).name):
            raise ValueError(
                f"{self.out} is for the scale {before.scale} and {before.data['name']}, not {scale.name} and "
                f"{Path(data.source).name}: give another --out"
            )
        _say(f"Scale {scale.name}, {why}: {scale.says}; pictures: {data.source}")
        return scale

    def _plan(self, claims: list["Claim"], scale: "Scale", data: "DataPart", jobs: int, known: Container[str]) -> "Grid":
        """The cells; told with their number and about how long they take."""
        from ..evidence.budget import estimate_seconds
        from ..evidence.grid import grid_of
        from ..evidence.run_cell import place_of
        from ..evidence.scale import IMAGENET
        from ..evidence.statistics import FEWEST

        place = str(place_of(self.device))
        grid = grid_of(claims, scale, data, self.seeds, place)
        count, left = len({cell.key for cell in grid.cells}), grid.left(self.out / "cells", known).cells
        seconds = 0.0 if scale is IMAGENET else estimate_seconds(left, grid, jobs, place)
        time = "how long is not estimated" if scale is IMAGENET else f"about {_duration(seconds)}"
        _say(f"{count} cells, {count - len(left)} of them done; {len(left)} to run, {jobs} side by side, {time}")
        if self.seeds < FEWEST:
            _say(f"There will be numbers and no verdicts: these take --seeds {FEWEST} or more")
        return grid

    def _run(self, grid: "Grid", cells: Path, jobs: int) -> bool:
        """What is not there yet; False if someone wanted to stop. Races come last, alone."""
        from ..evidence.pool import run_in_turn, run_side_by_side
        from ..evidence.run_cell import StoppedError
        from .train import interruptible

        console = Console(stderr=True)
        todo = grid.left(cells)
        total = len(todo.cells)

        def work(wanted: list[Any]) -> Generator["Record"]:
            def stop() -> bool:
                return bool(wanted)

            for group in (todo.trainings, todo.looks):
                if jobs > 1:
                    yield from run_side_by_side(group, cells, device=self.device, jobs=jobs)
                else:
                    yield from run_in_turn(group, cells, device=self.device, stop=stop)
            yield from run_in_turn(todo.races, cells, device=self.device, stop=stop, racers=grid.racers)

        try:
            with ExitStack() as stack:
                wanted = [] if jobs > 1 else stack.enter_context(interruptible())
                records = stack.enter_context(closing(work(wanted)))
                for record in track(records, "cells", total, console):
                    _tell(record, console)
        except (StoppedError, KeyboardInterrupt):
            return False
        return True

    def _report(self, results: "Results") -> None:
        """Figures, the page, and the verdicts on the screen."""
        from ..evidence.figures import draw
        from ..evidence.report import SUMMARY, page, summary
        from ..evidence.results import Numbers
        from ..training.checkpoint import write_whole

        numbers = Numbers.of(results)
        pictures = {}
        for claim in results.chosen:
            figure = draw(claim, numbers)
            if figure is not None:
                pictures[claim.name] = f"images/results_{claim.name}.png"
                prepare_folder(self.out / "images")
                drawn = io.BytesIO()
                figure.savefig(drawn, dpi=130)
                write_whole(self.out / pictures[claim.name], drawn.getvalue())
        write_whole(self.out / "results.md", page(results, pictures).encode())
        if self.json:
            found = {
                claim.name: {
                    "verdict": numbers.judge_claim(claim),
                    "checks": [
                        {
                            "says": c.says,
                            "ours": c.ours,
                            "verdict": numbers.judge(c),
                            "difference": _as_json(numbers.difference(c)),
                        }
                        for c in claim.checks
                    ],
                }
                for claim in results.chosen
            }
            print(json.dumps(found, indent=1))
            return
        console = Console()
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for column in SUMMARY:
            table.add_column(column)
        for row in summary(results):
            table.add_row(*row)
        console.print(table)
        there = len({record.key for record in results.records})
        if there < results.wanted:
            console.print(f"{there} of {results.wanted} cells were run so far.", markup=False, highlight=False)
        failed = [record for record in results.records if record.status == "failed"]
        if failed:
            console.print(
                f"{len(failed)} cells failed: see {self.out}/results.md; the same command tries them again.", markup=False
            )
        written = ", ".join([*(["results.json"] if self.source is None else []), "results.md", *pictures.values()])
        console.print(f"Written into {self.out}: {written}", highlight=False, soft_wrap=True, markup=False)


def _collect(claims: list["Claim"], scale: "Scale", data: "DataPart", seeds: int, grid: "Grid", cells: Path) -> "Results":
    """The records of all cells, a contender's each, though two may have been one computation."""
    from dataclasses import asdict

    from ..evidence.cell import load_record
    from ..evidence.results import Results
    from ..training.source import open_source

    records = []
    for cell in grid.cells:
        record = load_record(cells, cell.key)
        if record is not None:
            records.append(replace(record, contender=None if cell.contender is None else asdict(cell.contender)))
    source = open_source(data)
    size = grid.cells[0].recipe.data.size
    shown = {
        "name": Path(data.source).name, "train": len(source.train), "val": len(source.val), "classes": len(source.classes),
        "height": size[0], "width": size[1],
    }  # fmt: skip
    wanted = len({cell.key for cell in grid.cells})
    return Results(scale.name, scale.says, shown, seeds, [claim.name for claim in claims], wanted, records)


def _as_json(found: "Estimate | None") -> dict[str, float | int | None] | None:
    if found is None:
        return None
    ends = {"low": found.low, "high": found.high} if found.count > 1 else {"low": None, "high": None}
    return {"mean": found.mean, **ends, "seeds": found.count}


def _tell(record: "Record", console: Console) -> None:
    if record.status != "done":
        from ..evidence.contender import Contender

        label = "a race" if record.contender is None else Contender(**record.contender).label
        console.print(
            f"{label}, seed {record.seed}: {record.status}. {record.error}", markup=False, highlight=False, soft_wrap=True
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
