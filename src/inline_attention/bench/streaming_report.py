"""What the records of `inline bench stream` say: a table, sentences, a picture."""

from collections.abc import Sequence
from math import nan

from matplotlib.figure import Figure

from .drawing import INLINE, SOFTMAX, logarithmic
from .record import Record, seconds
from .wording import ends, shown

COLUMNS = ["model", "size", "s", "ns/pixel", "over plain", "GB", "difference"]
LEGEND = (
    "A square picture in a memory-mapped file, taken through the model in bands: seconds of one pass; for a pixel, and that "
    "over what a pixel of a picture of 1,792 x 1,792 (--quick: 896 x 896) costs in the plain forward pass; the most memory "
    "that the whole process held, torch and all; and the greatest difference to the features of the plain forward pass, as a "
    "share of the greatest of them, at the size where both were run."
)


def per_pixel(record: Record) -> float:
    """Seconds."""
    size: int = record["size"]
    return seconds(record, "stream", "bands") / size**2


def over_plain(record: Record) -> float:
    """What a pixel costs over what it costs in the plain pass."""
    plain: int = record["plain"]
    return per_pixel(record) / (seconds(record, "forward", "plain") / plain**2)


def process(record: Record) -> float:
    """Gigabytes that the process held."""
    held: int | None = record["process"]
    return held / 1e9 if held else nan


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row a case."""
    return [
        [
            r["model"],
            f"{r['size']}",
            shown(seconds(r, "stream", "bands"), 1),
            shown(1e9 * per_pixel(r), 0),
            shown(over_plain(r)),
            shown(process(r)),
            "-" if r["difference"] is None else f"{r['difference']:.0e}",
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The worst of each figure."""
    return [
        f"A pixel in bands, over one in the plain forward pass: at most {ends(records, over_plain, _where)[1]}",
        f"Memory of the whole process, GB: at most {ends(records, process, _where)[1]}",
    ]


def draw(records: Sequence[Record]) -> Figure:
    """Seconds and memory against the side of the picture."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, marker, model in zip((INLINE, SOFTMAX), "os", dict.fromkeys(r["model"] for r in records), strict=False):
        mine = [r for r in records if r["model"] == model]
        sizes = [r["size"] for r in mine]
        left.plot(sizes, [seconds(r, "stream", "bands") for r in mine], f"-{marker}", color=colour, label=model)
        right.plot(sizes, [process(r) for r in mine], f"-{marker}", color=colour, label=model)
    for axis, label in ((left, "time of a picture, s"), (right, "memory of the process, GB")):
        logarithmic(axis, sorted({r["size"] for r in records}))
        axis.set(xlabel="side of the picture, pixels", ylabel=label)
        axis.legend(fontsize=9)
    return figure


def _where(record: Record) -> str:
    return f"{record['model']} at {record['size']}"
