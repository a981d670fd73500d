"""`inline list`: all models, and what they cost."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .progress import track

COLOURS = {"deit": "#1f5fa8", "pvt": "#27844b", "swin": "#c0392b", "cswin": "#8e44ad"}
LABELS = {"deit": (4, -12), "pvt": (-34, -12), "swin": (4, -12), "cswin": (-10, 6)}
"""Where a family's labels are, in points from its marks, so that they do not meet."""


@dataclass(frozen=True)
class List:
    """All models: input, parameters, FLOPs, reported accuracy."""

    pattern: Annotated[str, tyro.conf.Positional] = "inline_*"
    """Only names like this, such as 'inline_swin_*'."""
    dense: bool = False
    """Detectors and segmenters instead: parameters and FLOPs, InLine beside its softmax twin."""
    plot: bool = False
    """Draw reported accuracy against FLOPs."""
    out: Path = Path("list")
    """Folder for models.png, if --plot."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Count, print, draw."""
        if self.dense:
            from .list_dense import list_dense

            if self.plot:
                raise ValueError("--plot draws classifiers: leave out --dense or --plot")
            list_dense(self.pattern, as_json=self.json)
            return
        import torch
        from timm.models import create_model, list_models

        from ..models.counting import count
        from ..models.published import REPORTED, SOURCE, Reported

        names = list_models(self.pattern)
        names = [name for name in names if name.startswith("inline_")]
        if not names:
            raise ValueError(f"no model is named like {self.pattern!r}; there are: {', '.join(list_models('inline_*'))}")
        if self.plot:
            prepare_folder(self.out)
        records: list[dict[str, Any]] = []
        console = Console(stderr=True)
        for name in track(names, "models", len(names), console) if console.is_terminal else names:
            with torch.device("meta"):
                model: Any = create_model(name)
            reported = REPORTED.get(name, Reported(None))
            cost = {"height": model.img_size[0], "width": model.img_size[1], **asdict(count(model))}
            records.append({"model": name, **cost, "reported_top1": reported.top1, "reported_params": reported.params})
        records.sort(key=lambda r: (r["model"].split("_")[1], r["flops"]))
        if self.json:
            print(json.dumps({"source": SOURCE, "models": records}, indent=1))
        else:
            _print(records, SOURCE)
        if self.plot:
            _draw(records, self.out / "models.png")
            if not self.json:
                print(f"Written: {self.out}/models.png")


def _print(records: list[dict[str, Any]], source: str) -> None:
    console = Console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("model", "input", "params", "FLOPs", "top-1"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    notes = []
    for r in records:
        params, flops, top1 = r["params"], r["flops"], r["reported_top1"]
        star = "*" if r["reported_params"] else ""
        if star:
            notes.append(f"{r['model']} {r['reported_params']}")
        table.add_row(
            r["model"],
            f"{r['height']}x{r['width']}",
            f"{params / 1e6:.2f}M{star}",
            f"{flops / 1e9:.2f}G" if flops >= 1e9 else f"{flops / 1e6:.0f}M",
            "-" if top1 is None else f"{top1}",
        )
    console.print(table)
    console.print("Params and FLOPs (multiply-adds) counted here.", highlight=False, soft_wrap=True)
    console.print(f"Top-1 on ImageNet-1K, percent, as reported by {source}.", highlight=False, soft_wrap=True)
    if notes:
        console.print(f"* the authors' table prints: {', '.join(notes)}.", highlight=False, soft_wrap=True)


def _draw(records: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = figure.subplots()
    for family, colour in COLOURS.items():
        points = [
            (r["flops"] / 1e9, r["reported_top1"], r["model"].split("_", 2)[2])
            for r in records
            if r["model"].split("_")[1] == family and r["reported_top1"] is not None
        ]
        if not points:
            continue
        axis.plot([x for x, _, _ in points], [y for _, y, _ in points], "-o", color=colour, label=f"inline_{family}")
        for x, y, size in points:
            axis.annotate(size, (x, y), textcoords="offset points", xytext=LABELS[family], fontsize=8, color=colour)
    axis.set(xscale="log", xlabel="FLOPs (multiply-adds), billions", ylabel="reported top-1 on ImageNet-1K, %")
    axis.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    axis.minorticks_off()
    axis.margins(0.08)
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend(fontsize=9, loc="lower right")
    figure.savefig(path, dpi=130)
