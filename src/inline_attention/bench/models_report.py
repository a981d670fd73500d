"""What the records of `inline bench models` say: a table, sentences, a picture."""

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from .drawing import GREY, INLINE, SOFTMAX, TEXTBOOK
from .models import TWIN
from .product import FLOPS
from .record import Record, memory, ratio, seconds, spread
from .wording import ends, places, shown

COLUMNS = ["model", "rival", "size", "batch", "mode", "ms", "spread", "speed", "memory", "share"]
LEGEND = (
    "Milliseconds of a batch, the best round; the median round over it (spread); how many times as fast as its rival the model "
    "is (speed); its peak memory over the rival's; and the share that it reaches of the rate of a 1024 x 1024 x 1024 product, "
    "by the paper's count of multiply-adds. Rivals are timm's deit_tiny_patch16_224 and swin_tiny_patch4_window7_224, and the "
    "model with softmax for attention (twin). Modes: a forward pass; one of models compiled by torch.compile, both; and a "
    "training step, forward and backward, which counts as three forward passes in the share."
)


def speed(record: Record) -> float:
    """How many times as fast as the rival."""
    return ratio(record, record["mode"], "rival", "model")


def held(record: Record) -> float:
    """Peak memory over the rival's."""
    return memory(record, "model", "rival")


def share(record: Record) -> float:
    """The model's rate over the matrix product's. A backward pass has two products for each of the forward pass."""
    mode: str = record["mode"]
    passes = 3 if mode == "step" else 1
    flops: int = 2 * record["flops"] * record["batch"] * passes
    return flops / seconds(record, mode, "model") / (FLOPS / seconds(record, mode, "product"))


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row a case."""
    return [
        [
            r["model"],
            r["rival"] if r["rival"] == TWIN else "timm",
            f"{r['size']}",
            f"{r['batch']}",
            _mode(r),
            shown(1e3 * seconds(r, r["mode"], "model"), 1),
            *map(shown, (spread(r, r["mode"], "model"), speed(r), held(r), share(r))),
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """The worst figures of each mode and kind of rival, where the rival wins, and what failed."""
    out = []
    for mode in dict.fromkeys(map(_mode, records)):
        for twin, label in ((False, "timm"), (True, "softmax twins")):
            some = [r for r in records if _mode(r) == mode and (r["rival"] == TWIN) == twin]
            if not some:
                continue
            out += [
                f"{mode.capitalize()}, against {label}",
                f"  least speed: {ends(some, speed, _where)[0]}",
                f"  most memory, over the rival's: {ends(some, held, _where)[1]}",
                f"  least share of the product's rate: {ends(some, share, _where)[0]}",
                f"  the rival is faster than {places(some, speed, _where, lambda value: value < 1) or 'none'}",
                f"  the rival needs less memory than {places(some, held, _where, lambda value: value > 1) or 'none'}",
            ]
    failed = [f"Failed: {name} of {_where(r)}, {_mode(r)}: {why}" for r in records for name, why in r["errors"].items()]
    return out + failed


def draw(records: Sequence[Record]) -> Figure:
    """Speed over the rival's, a bar a case."""
    colours = defaultdict(lambda: GREY, {"forward": INLINE, "compiled": SOFTMAX, "step": TEXTBOOK})
    figure = Figure(figsize=(8, 1.2 + 0.28 * len(records)), layout="constrained")
    axis = figure.subplots()
    names = [f"{r['model']} / {r['rival']}, {r['size']}, batch {r['batch']}" for r in records]
    bars = axis.barh(range(len(records)), [speed(r) for r in records], color=[colours[_mode(r)] for r in records])
    axis.bar_label(bars, [shown(speed(r)) for r in records], padding=3, fontsize=8)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_yticks(range(len(records)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("times as fast as the rival")
    axis.margins(x=0.1, y=0.01)
    there = dict.fromkeys(map(_mode, records))
    axis.legend(handles=[Patch(color=colours[mode], label=mode) for mode in there], fontsize=8)
    return figure


def _mode(record: Record) -> str:
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    if not record["compiled"]:
        return f"{record['mode']}{dtype}"
    return ("compiled" if record["mode"] == "forward" else "compiled step") + dtype


def _where(record: Record) -> str:
    return f"{record['model']} at {record['size']}, batch {record['batch']}"
