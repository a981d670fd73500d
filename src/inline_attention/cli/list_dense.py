"""`inline list --dense`: what detectors and segmenters cost, InLine beside its softmax twin."""

import json
from fnmatch import fnmatch
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .progress import track

PVT = tuple(f"inline_pvt_{size}" for size in ("tiny", "small", "medium", "large"))
SWIN = tuple(f"inline_swin_{size}" for size in ("tiny", "small", "base"))


class Group(NamedTuple):
    """What the paper compares with one head."""

    head: str
    backbones: tuple[str, ...]
    size: tuple[int, int]
    """Height and width."""
    width: int
    """Channels of the head."""
    classes: int


class Compared(NamedTuple):
    """A row."""

    group: Group
    backbone: str


COMPARED = (
    Group("mask_rcnn", PVT + SWIN, (800, 1280), 256, 80),
    Group("cascade_mask_rcnn", SWIN, (800, 1280), 256, 80),
    Group("semantic_fpn", PVT, (512, 2048), 256, 150),
    Group("upernet", SWIN, (512, 2048), 512, 150),
)


def list_dense(pattern: str, *, as_json: bool) -> None:
    """Count and print."""
    wanted = [Compared(group, name) for group in COMPARED for name in group.backbones if fnmatch(name, pattern)]
    if not wanted:
        raise ValueError(f"no pyramid is named like {pattern!r}; there are: {', '.join(PVT + SWIN)}")
    console = Console(stderr=True)
    rows = track(wanted, "models", len(wanted), console) if console.is_terminal else wanted
    records = [_count(row.group, row.backbone) for row in rows]
    if as_json:
        print(json.dumps({"models": records}, indent=1))
    else:
        _print(records)


def _count(group: Group, name: str) -> dict[str, Any]:
    import torch

    from ..dense.costs import detector_costs, segmenter_costs
    from ..dense.detector import DETECTORS, make_detector
    from ..dense.pyramid import make_pyramid
    from ..dense.segmenter import Segmenter

    head, _, size, width, classes = group
    record: dict[str, Any] = {"head": head, "backbone": name, "height": size[0], "width": size[1], "classes": classes}
    for mixer in ("inline", "softmax"):
        with torch.device("meta"):
            pyramid = make_pyramid(name, {} if mixer == "inline" else {"mixer": mixer})
            if head in DETECTORS:
                cost = detector_costs(make_detector(pyramid, head, classes, width=width, mean=(0,) * 3, std=(1,) * 3), *size)
            else:
                cost = segmenter_costs(Segmenter(pyramid, head, classes, width=width), *size)
        record |= {f"{mixer}_params": cost.params, f"{mixer}_flops": cost.flops}
    return record


def _print(records: list[dict[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("head", "inline_", "input", "params", "twin", "FLOPs", "twin"):
        table.add_column(column, justify="left" if column in ("head", "inline_") else "right", no_wrap=True)
    before = ""
    for r in records:
        if before not in ("", r["head"]):
            table.add_section()
        before = r["head"]
        table.add_row(
            r["head"],
            r["backbone"].removeprefix("inline_"),
            f"{r['height']}x{r['width']}",
            *(f"{r[f'{mixer}_params'] / 1e6:.1f}M" for mixer in ("inline", "softmax")),
            *(f"{r[f'{mixer}_flops'] / 1e9:.0f}G" for mixer in ("inline", "softmax")),
        )
    console = Console()
    console.print(table)
    for line in (
        "Counted here, as multiply-adds of one picture (height x width): detectors with 80 classes, 1,000 boxes and 100 masks, "
        "segmenters with 150 classes.",
        "The twin has softmax attention in every block, in Swin's windows or with PVT's spatial reduction.",
        "UperNet's auxiliary head is among the parameters, and is not computed.",
    ):
        console.print(line, highlight=False, soft_wrap=True)
