"""`inline list`: all models and what they cost; with --dense, detectors and segmenters."""

import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .arguments import prepare_folder
from .console import table_console
from .progress import track

COLOURS = {"deit": "#1f5fa8", "pvt": "#27844b", "swin": "#c0392b", "cswin": "#8e44ad"}
LABELS = {"deit": (4, -12), "pvt": (-34, -12), "swin": (4, -12), "cswin": (-10, 6)}
"""Where a family's labels are, in points from its marks, so that they do not overlap."""
COUNTED = {
    "inline_cswin_base": (224, 224, 73_413_640, 14_884_720_128, 56_269_032),
    "inline_cswin_base_384": (384, 384, 73_413_640, 46_220_164_608, 216_920_872),
    "inline_cswin_nano": (32, 32, 814_100, 8_205_040, 142_232),
    "inline_cswin_small": (224, 224, 33_032_872, 6_772_973_568, 35_997_128),
    "inline_cswin_tiny": (224, 224, 20_604_520, 4_311_612_928, 23_078_264),
    "inline_deit_base": (448, 448, 23_797_096, 17_169_133_056, 40_394_104),
    "inline_deit_nano": (32, 32, 938_248, 179_642_688, 1_679_104),
    "inline_deit_small": (288, 288, 16_734_760, 4_965_812_480, 14_029_120),
    "inline_deit_tiny": (224, 224, 6_477_736, 1_109_155_584, 5_140_048),
    "inline_pvt_large": (224, 224, 51_154_280, 10_129_699_328, 41_497_168),
    "inline_pvt_medium": (224, 224, 37_618_856, 6_861_930_496, 29_094_120),
    "inline_pvt_nano": (32, 32, 833_160, 13_200_384, 206_392),
    "inline_pvt_small": (224, 224, 21_556_136, 3_914_868_736, 20_630_280),
    "inline_pvt_tiny": (224, 224, 12_032_232, 1_975_843_840, 11_463_640),
    "inline_swin_base": (224, 224, 88_350_120, 15_397_801_984, 35_999_144),
    "inline_swin_base_384": (384, 384, 88_465_320, 46_200_152_064, 120_529_384),
    "inline_swin_nano": (32, 32, 766_272, 7_540_960, 136_880),
    "inline_swin_small": (224, 224, 49_793_296, 8_719_383_552, 27_042_616),
    "inline_swin_tiny": (224, 224, 29_223_544, 4_458_974_208, 16_498_936),
}
"""Height, width, parameters, FLOPs and activations of each model, counted before: counting all takes ten seconds."""
PVT = tuple(f"inline_pvt_{size}" for size in ("tiny", "small", "medium", "large"))
SWIN = tuple(f"inline_swin_{size}" for size in ("tiny", "small", "base"))


class Group(NamedTuple):
    """Backbones that the paper compares with one head."""

    head: str
    backbones: tuple[str, ...]
    size: tuple[int, int]
    """Height and width."""
    width: int
    """Channels of the head."""
    classes: int


DENSE = (
    Group("mask_rcnn", PVT + SWIN, (800, 1280), 256, 80),
    Group("cascade_mask_rcnn", SWIN, (800, 1280), 256, 80),
    Group("faster_rcnn", PVT + SWIN, (800, 1280), 256, 80),
    Group("cascade_rcnn", SWIN, (800, 1280), 256, 80),
    Group("semantic_fpn", PVT, (512, 2048), 256, 150),
    Group("upernet", SWIN, (512, 2048), 512, 150),
)


@dataclass(frozen=True)
class List:
    """List the models: input size, parameters, FLOPs, reported accuracy."""

    pattern: Annotated[str, tyro.conf.Positional] = "inline_*"
    """Only names that contain this, or match it as a pattern, such as 'inline_swin_*'."""
    dense: bool = False
    """List detectors and segmenters: parameters and FLOPs of InLine and of its softmax twin."""
    plot: bool = False
    """Draw reported accuracy against FLOPs."""
    out: Path = Path("list")
    """Folder for models.png, if --plot."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Print, and draw if asked."""
        if self.dense:
            if self.plot:
                raise ValueError("--plot draws classifiers: leave out --dense or --plot")
            self._run_dense()
            return
        from timm.models import list_models

        pattern = self.pattern if "*" in self.pattern or self.pattern in COUNTED else f"*{self.pattern}*"

        from ..models.published_models import REPORTED, SOURCE, Reported

        names = [name for name in list_models(pattern) if name.startswith("inline_")]
        if not names:
            raise ValueError(f"no model is named like {self.pattern!r}; there are: {', '.join(list_models('inline_*'))}")
        if self.plot:
            prepare_folder(self.out)
        records: list[dict[str, Any]] = []
        for name in names:
            reported = REPORTED.get(name, Reported(None))
            figures = {"reported_top1": reported.top1, "reported_params": reported.params}
            records.append({"model": name, **model_cost(name), **figures, "weights": _weights(name)})
        records.sort(key=lambda r: (r["model"].split("_")[1], r["flops"]))
        if self.json:
            print(json.dumps({"source": SOURCE, "models": records}, indent=1))
        else:
            _print(records, SOURCE)
        if self.plot:
            _draw(records, self.out / "models.png")
            if not self.json:
                print(f"Written: {self.out}/models.png")

    def _run_dense(self) -> None:
        found = [name for name in PVT + SWIN if fnmatch(name, self.pattern) or self.pattern in name]
        pairs = [(group, name) for group in DENSE for name in group.backbones if name in found]
        if not pairs:
            raise ValueError(f"no pyramid is named like {self.pattern!r}; there are: {', '.join(PVT + SWIN)}")
        console = Console(stderr=True)
        rows = track(pairs, "models", len(pairs), console) if console.is_terminal else pairs
        records = [_dense_cost(group, name) for group, name in rows]
        if self.json:
            print(json.dumps({"models": records}, indent=1))
        else:
            _print_dense(records)


def model_cost(name: str) -> dict[str, int]:
    """Height, width, parameters, FLOPs and activations of a model; counted now if it is not in `COUNTED`."""
    if name in COUNTED:
        return dict(zip(("height", "width", "params", "flops", "activations"), COUNTED[name], strict=True))
    import torch
    from timm.models import create_model

    from ..models.counting import count

    with torch.device("meta"):
        model: Any = create_model(name)
    return {"height": model.img_size[0], "width": model.img_size[1], **asdict(count(model))}


def _weights(name: str) -> str | None:
    """Where `pretrained=True` finds weights: 'here', 'online', the tags of those in the package, or None."""
    from ..models.packaged_weights import tags_of
    from ..models.published_weights import FILES, find_weights

    if name in FILES:
        return "here" if find_weights(name) else "online"
    return ", ".join(tag.partition(".")[2] for tag in tags_of(name)) or None


def _dense_cost(group: Group, name: str) -> dict[str, Any]:
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


def _print(records: list[dict[str, Any]], source: str) -> None:
    from ..models.published_weights import NO_LICENCE

    console = table_console()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1))
    for column in ("model", "input", "params", "FLOPs", "top-1", "weights"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=column != "weights")
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
            r["weights"] or "-",
        )
    console.print(table)
    console.print(
        "Params and FLOPs (multiply-adds) as counted by this package, with 1,000 classes.", highlight=False, soft_wrap=True
    )
    console.print(f"Top-1 on ImageNet-1K, percent, as reported by {source}.", highlight=False, soft_wrap=True)
    if any(r["weights"] for r in records):
        console.print(
            f"Weights: timm.create_model(MODEL, pretrained=True) fetches them. {NO_LICENCE} Those with a tag, such as "
            "inline_swin_nano.digits, are in this package.",
            highlight=False,
            soft_wrap=True,
        )
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


def _print_dense(records: list[dict[str, Any]]) -> None:
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
    console = table_console()
    console.print(table)
    for line in (
        "Counted by this package, as multiply-adds of one image (height x width): detectors with 80 classes, 1,000 boxes and "
        "100 masks (faster_rcnn and cascade_rcnn have none), "
        "segmenters with 150 classes.",
        "The twin has softmax attention in every block, in Swin's windows or with PVT's spatial reduction.",
        "UperNet's auxiliary head is among the parameters, and is not computed.",
    ):
        console.print(line, highlight=False, soft_wrap=True)
