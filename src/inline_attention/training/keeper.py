"""What a run leaves on disk while it goes: metrics, checkpoints, the best weights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from accelerate import Accelerator
from torch import nn

from .checkpoint import save_checkpoint, to_bytes, write_whole
from .recipe import Recipe
from .run_folder import RunFolder
from .states import gather, gather_optimizer
from .task import Task

SHOWN = ("size", "channels", "view", "crop", "interpolation", "mean", "std")
"""What decides how a picture is shown to a trained model."""


@dataclass(frozen=True)
class Keeper:
    """Writes from the main process; every process calls it, as gathering takes all of them."""

    folder: RunFolder
    recipe: Recipe
    task: Task
    classes: tuple[str, ...]
    data: Mapping[str, Any]
    """What the data was, for a run that goes on."""
    accelerator: Accelerator

    def log(self, row: dict[str, Any]) -> None:
        """Keep a line of metrics."""
        if self.accelerator.is_main_process:
            self.folder.append(row)
            if row["kind"] == "evaluation":
                self.folder.write_table()
        numbers = {f"{row['kind']}/{name}": value for name, value in row.items() if isinstance(value, float)}
        self.accelerator.log(numbers, step=row["step"])

    def save(self, model: nn.Module, optimizer: Any, average: nn.Module | None, progress: Any) -> None:
        """Write a checkpoint."""
        weights, remembered = gather(model), gather_optimizer(model, optimizer)
        if self.accelerator.is_main_process:
            scaler = None if self.accelerator.scaler is None else self.accelerator.scaler.state_dict()
            optimizing = {"plain": remembered.plain, "groups": remembered.groups}
            state = {
                "step": progress.step,
                "progress": asdict(progress),
                "optimizer": optimizing,
                "scaler": scaler,
                "data": self.data,
            }
            parts = {"model": to_bytes(weights, self.describe()), "optimizer": to_bytes(remembered.tensors)}
            if average is not None:
                parts["ema"] = to_bytes(average.state_dict(), self.describe())
            save_checkpoint(self.folder.checkpoints, state, parts)
        self.accelerator.wait_for_everyone()

    def keep_best(self, model: nn.Module, told: dict[str, Any]) -> None:
        """Write the weights that scored best, and how well they did."""
        weights = gather(model)
        if self.accelerator.is_main_process:
            write_whole(self.folder.best, to_bytes(weights, {**self.describe(), **told}))

    def describe(self) -> dict[str, Any]:
        """What a file of weights says of itself, so that it can be used without the run."""
        name, arguments = self.task.creation(len(self.classes))
        data = {key: getattr(self.recipe.data, key) for key in SHOWN}
        task = {} if self.recipe.task.name == "classify" else {"task": asdict(self.recipe.task)}
        return {"model": name, "arguments": arguments, "classes": self.classes, "data": data, **task}

    def last_good(self) -> str:
        """Where the newest checkpoint is, for a message."""
        there = sorted(self.folder.checkpoints.glob("step-*"))
        return f"the last good checkpoint is {there[-1]}" if there else "there is no checkpoint before it"
