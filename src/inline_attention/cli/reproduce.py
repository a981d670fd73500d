"""`inline reproduce`: measure the paper's claims on small models."""

import os
import sys
from collections.abc import Callable, Container, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from .arguments import prepare_folder
from .progress import track
from .reproduce_report import collect_results, report_results

if TYPE_CHECKING:
    from ..data.config import DataConfig
    from ..evidence.claims import Claim
    from ..evidence.results import Results
    from ..evidence.scale import Scale
    from ..evidence.trial import Record
    from ..evidence.trial_plan import TrialPlan

MOST_SEEDS, MOST_JOBS = 1000, 1024


@dataclass(frozen=True)
class Reproduce:
    """Train small models to measure which of the paper's claims hold, with several seeds and confidence intervals."""

    claims: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Which claims: kernels, windows, mixers, families, attention, speed, resolution, width, length; unset: all of these.
    Besides, only when named: newer (eight newer attentions), family (InLine's scale, and sums with linear attention)."""
    data: str | None = None
    """Any source of `inline train`; unset: fashion-mnist where it is installed, else digits."""
    root: str | None = None
    """Folder of a wds/, hfds/ or torch/ source."""
    scale: str | None = None
    """glance, hour, laptop, day or week; imagenet: the paper's recipes. Unset: that of --out, or what the budget allows."""
    budget: str | None = None
    """How long all of it may take, such as 30m, 2h or 1d: the largest scale that fits is taken; unset: 1h."""
    seeds: int = 3
    """How many seeds, shared by all candidates; with fewer than 3 there is no verdict."""
    jobs: int | None = None
    """Trials at the same time; unset: one for each core, or for each GPU."""
    out: Path = Path("reproduce")
    """Folder for results.json, results.md, figures, and trials (one model, one seed), each of which is computed once: the same
    command goes on where it was stopped."""
    source: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Run nothing: write the page and the figures of this results.json, or of a folder that has one, into --out."""
    known: Path | None = None
    """A results.json of an earlier run, or of another machine: its trials are not computed again."""
    device: str = "auto"
    """auto, cpu or the accelerator that is there."""
    dry_run: bool = False
    """Run nothing: print the scale, the trials, and about how long they take."""
    json: bool = False
    """Print the verdicts as JSON."""

    def run(self) -> None:
        """Choose a scale, run the trials that are missing, report."""
        from ..evidence.results import read_results
        from ..training.folder_lock import lock_folder

        claims = self._claims()
        if self.out.is_file():
            raise ValueError(f"--out must be a folder, and {self.out} is a file")
        if self.source is not None:
            self._report_from(self.source / "results.json" if self.source.is_dir() else self.source, claims)
            return
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise ValueError(f"--seeds must be from 1 to {MOST_SEEDS}, got {self.seeds}")
        jobs = self._jobs()
        data = self._data()
        before = read_results(self._file) if self._file.is_file() else None
        earlier = [] if self.known is None else [one for one in read_results(self.known).records if one.status != "failed"]
        scale = self._scale(claims, data, jobs, before)
        trials = self.out / "trials"
        plan = self._plan(claims, scale, data, jobs, {record.key for record in earlier})
        if self.dry_run:
            return
        prepare_folder(trials)
        with lock_folder(self.out):
            self._compute(claims, scale, data, jobs, plan, earlier, before)

    def _compute(
        self,
        claims: list["Claim"],
        scale: "Scale",
        data: "DataConfig",
        jobs: int,
        plan: "TrialPlan",
        earlier: list["Record"],
        before: "Results | None",
    ) -> None:
        """Run the trials that are missing, and report."""
        from ..evidence.claims import ALL_CLAIMS
        from ..evidence.run_trial import resolve_device
        from ..evidence.trial import load_finished_record
        from ..evidence.trial_plan import plan_trials

        trials = self.out / "trials"
        for record in earlier:
            if load_finished_record(trials, record.key) is None:
                record.write(trials)
        names = {claim.name for claim in claims} | set(before.claims if before is not None else ())
        reported = [
            claim for name, claim in ALL_CLAIMS.items() if name in names
        ]  # what the folder had before stays in the report
        everything = plan_trials(reported, scale, data, self.seeds, str(resolve_device(self.device)))
        results = collect_results(reported, scale, data, self.seeds, everything, trials)
        self._write(results)  # before the trials: it records what the folder is for
        done = self._run(plan, trials, jobs)
        results = collect_results(reported, scale, data, self.seeds, everything, trials)
        self._write(results)
        report_results(results, self.out, as_json=self.json, wrote_json=True)
        if not done:
            _say("Stopped and saved: this is what there is so far. The same command goes on.")
            sys.exit(130)

    @property
    def _file(self) -> Path:
        return self.out / "results.json"

    def _write(self, results: "Results") -> None:
        from ..training.checkpoint import write_atomically

        write_atomically(self._file, results.to_json().encode())

    def _report_from(self, file: Path, claims: list["Claim"]) -> None:
        """Write the page and the figures of a file: of all its claims, or of --claims."""
        from ..evidence.results import read_results

        results = read_results(file)
        if self.claims:
            for claim in claims:
                if claim.name not in results.claims:
                    raise ValueError(f"{file} has no claim {claim.name!r}; it has: {', '.join(results.claims)}")
            results = replace(results, claims=[claim.name for claim in claims])
        prepare_folder(self.out)
        report_results(results, self.out, as_json=self.json, wrote_json=False)

    def _claims(self) -> list["Claim"]:
        from ..evidence.claims import ALL_CLAIMS, CLAIMS, OLD_CLAIMS
        from ..training.config import nearest

        for name in self.claims:
            if name in OLD_CLAIMS:
                raise ValueError(f"the claim {name!r} is now called {OLD_CLAIMS[name]!r}")
            if name not in ALL_CLAIMS:
                raise ValueError(f"unknown claim {name!r}{nearest(name, ALL_CLAIMS)}; there are: {', '.join(ALL_CLAIMS)}")
        return [ALL_CLAIMS[name] for name in dict.fromkeys(self.claims or CLAIMS)]

    def _data(self) -> "DataConfig":
        from ..data.config import DataConfig
        from ..data.sources import FASHION, NAMED, open_source

        source = self.data or ("fashion-mnist" if FASHION.is_dir() else "digits")
        if source not in NAMED and Path(source).exists():
            source = str(Path(source).resolve())
        data = DataConfig(source=source, root=self.root)
        open_source(data)  # raises before anything else if something is wrong with it
        return data

    def _jobs(self) -> int:
        import torch

        from ..evidence.parallel_trials import cores
        from ..ops.checks import available_devices, check_device

        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise ValueError(f"--jobs must be from 1 to {MOST_JOBS}, got {self.jobs}")
        check_device(self.device)
        if "RANK" in os.environ:
            raise ValueError("one trial runs on each GPU, or core, by itself: start `inline reproduce` without a launcher")
        on_cores = self.device == "cpu" or available_devices() == ["cpu"]
        return self.jobs or (cores() if on_cores else torch.accelerator.device_count())

    def _scale(self, claims: list["Claim"], data: "DataConfig", jobs: int, before: "Results | None") -> "Scale":
        """The scale of --scale, of the folder, or that the budget allows; printed with the reason."""
        from ..evidence.budget import choose_scale, parse_budget
        from ..evidence.run_trial import resolve_device
        from ..evidence.scale import IMAGENET, SCALES
        from ..training.config import nearest

        budget = parse_budget(self.budget or "1h")
        known = {**SCALES, IMAGENET.name: IMAGENET}
        if self.scale is not None and self.scale not in known:
            raise ValueError(f"unknown scale {self.scale!r}{nearest(self.scale, known)}; there are: {', '.join(known)}")
        if self.scale is not None:
            scale, why = known[self.scale], "as given by --scale"
        elif before is not None and self.budget is None:
            scale, why = known[before.scale], f"as before in {self.out}"
        else:
            _say("Timing a few steps of each kind of model to choose a scale")
            scale, seconds = choose_scale(claims, data, self.seeds, jobs, budget, str(resolve_device(self.device)))
            within = f"the largest within {self.budget or 'an hour'}"
            why = within if seconds <= budget else f"the smallest, though it takes longer than {self.budget or 'an hour'}"
        if before is not None and (before.scale, before.data["name"]) != (scale.name, Path(data.source).name):
            raise ValueError(
                f"{self.out} is for the scale {before.scale} and {before.data['name']}, not {scale.name} and "
                f"{Path(data.source).name}: give another --out"
            )
        _say(f"Scale {scale.name}, {why}: {scale.description}; images: {data.source}")
        return scale

    def _plan(self, claims: list["Claim"], scale: "Scale", data: "DataConfig", jobs: int, known: Container[str]) -> "TrialPlan":
        """The trials; printed with their number and about how long they take."""
        from ..evidence.budget import estimate_seconds
        from ..evidence.run_trial import resolve_device
        from ..evidence.scale import IMAGENET
        from ..evidence.statistics import MIN_SEEDS
        from ..evidence.trial_plan import plan_trials

        place = str(resolve_device(self.device))
        plan = plan_trials(claims, scale, data, self.seeds, place)
        count, left = len({trial.key for trial in plan.trials}), plan.remaining(self.out / "trials", known).trials
        seconds = 0.0 if scale is IMAGENET else estimate_seconds(left, plan, jobs, place)
        time = "how long is not estimated" if scale is IMAGENET else f"about {_duration(seconds)}"
        _say(f"{count} trials, {count - len(left)} of them done; {len(left)} to run, {jobs} side by side, {time}")
        if self.seeds < MIN_SEEDS:
            _say(f"There will be numbers and no verdicts: these take --seeds {MIN_SEEDS} or more")
        return plan

    def _run(self, plan: "TrialPlan", trials: Path, jobs: int) -> bool:
        """Run the trials that are missing; False if the user stopped them. Timed trials come last, alone on the machine."""
        from ..evidence.parallel_trials import run_parallel, run_sequential
        from ..evidence.run_trial import StoppedError
        from .train import stop_signals

        console = Console(stderr=True)
        todo = plan.remaining(trials)
        total = len(todo.trials)

        def work(stop: Callable[[], bool]) -> Generator["Record"]:
            for group in (todo.trainings, todo.analyses):
                if jobs > 1:
                    yield from run_parallel(group, trials, device=self.device, jobs=jobs)
                else:
                    yield from run_sequential(group, trials, device=self.device, stop=stop)
            yield from run_sequential(todo.timings, trials, device=self.device, stop=stop, timed_recipes=plan.timed_recipes)

        try:
            with ExitStack() as stack:
                stop = (lambda: False) if jobs > 1 else stack.enter_context(stop_signals()).is_set
                records = stack.enter_context(closing(work(stop)))
                for record in track(records, "trials", total, console):
                    _print_failure(record, console)
        except (StoppedError, KeyboardInterrupt):
            return False
        return True


def _print_failure(record: "Record", console: Console) -> None:
    if record.status != "done":
        from ..evidence.candidate import Candidate

        label = "a timing" if record.candidate is None else Candidate(**record.candidate).label
        console.print(
            f"{label}, seed {record.seed}: {record.status}. {record.error}", markup=False, highlight=False, soft_wrap=True
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
