"""What the records of `inline bench layer` say: a table, sentences, a picture."""

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan, log

from matplotlib.figure import Figure

from .drawing import GREY, INLINE, SOFTMAX, TEXTBOOK, logarithmic
from .record import Record, memory, peak, ratio, seconds
from .wording import ends, places, shown

COLUMNS = ["N", "C", "ms", "softmax", "textbook", "inline", "global", "vs textbook", "vs softmax", "memory"]
LEGEND = (
    "Forward: milliseconds of four N x C x C products, and in units of these softmax (SDPA), textbook InLine, "
    "InLineAttention, and InLineAttention without its local residual (global). Forward + backward: its "
    "speed over textbook's and over softmax's, and its peak memory over textbook's."
)


def over_the_better_form(record: Record, kind: str, name: str) -> float:
    """The chosen form's time over that of the better of the two."""
    return max(ratio(record, kind, name, f"{name}, {form}") for form in ("folded", "heads"))


def growth(records: Sequence[Record], kind: str, name: str, dim: int) -> float:
    """p such that the time of one picture grows as N^p from 1,024 to 16,384 tokens."""
    one_picture = {r["tokens"]: seconds(r, kind, name) / r["batch"] for r in records if r["dim"] == dim}
    return log(one_picture[16_384] / one_picture[1_024]) / log(16)


def rows(records: Sequence[Record]) -> list[list[str]]:
    """The table, a row a case."""
    return [
        [
            f"{r['tokens']:,}",
            f"{r['dim']}",
            f"{1e3 * seconds(r, 'forward', 'four products'):.2f}",
            *(
                f"{ratio(r, 'forward', name, 'four products'):.2f}"
                for name in ("softmax", "textbook", "inline", "inline global")
            ),
            *(f"{ratio(r, 'step', name, 'inline'):.2f}" for name in ("textbook", "softmax")),
            shown(memory(r, "inline", "textbook")),
        ]
        for r in records
    ]


def sentences(records: Sequence[Record]) -> list[str]:
    """What the figures amount to, the least and the greatest of each, and where the layer loses."""
    out = []
    large = [r for r in records if r["tokens"] >= 784]
    for name, label in (("inline", "InLineAttention"), ("inline global", "InLineAttention(local=False)")):
        textbook = name.replace("inline", "textbook")
        out += [
            f"{label}, from 784 tokens on",
            f"  forward, over four products: {_span(large, ratio, 'forward', name, 'four products')}",
            f"  forward, softmax over it: {_span(large, ratio, 'forward', 'softmax', name)}",
            f"  forward + backward, textbook over it: {_span(large, ratio, 'step', textbook, name)}",
            f"  forward + backward, softmax over it: {_span(large, ratio, 'step', 'softmax', name)}",
            f"  peak memory, over textbook's: {_span(large, memory, name, textbook)}",
            f"  peak memory, over softmax's: {_span(large, memory, name, 'softmax')}",
            f"{label}, all sizes, chosen form over the better one",
            f"  forward: {_span(records, over_the_better_form, 'forward', name)}",
            f"  forward + backward: {_span(records, over_the_better_form, 'step', name)}",
        ]
        widths = [{r["dim"] for r in records if r["tokens"] == count} for count in (1_024, 16_384)]
        powers = [f"N^{growth(records, 'forward', name, dim):.2f} (C = {dim})" for dim in sorted(widths[0] & widths[1])]
        if powers:
            out.append(f"{label}, forward time of a picture from 1,024 to 16,384 tokens grows as {', '.join(powers)}")
    small = [r for r in records if r["tokens"] < 784]
    out.append(f"InLineAttention, below 784 tokens, peak memory over softmax's: {_span(small, memory, 'inline', 'softmax')}")
    for kind, label in (("forward", "Forward"), ("step", "Forward + backward")):
        speed = partial(ratio, kind=kind, name="softmax", other="inline")
        lost = places(records, speed, _where, lambda value: value < 1)
        out.append(f"{label}, softmax is faster than InLineAttention at {lost or 'none of these sizes'}")
    return out


def _span(records: Sequence[Record], value: Callable[..., float], *arguments: str) -> str:
    """Least and greatest value, with where."""
    return " to ".join(ends(records, lambda r: value(r, *arguments), _where)) if records else "not measured"


def _where(record: Record) -> str:
    return f"N = {record['tokens']:,}, C = {record['dim']}"


def draw(records: Sequence[Record]) -> Figure:
    """Time of a token and peak memory of a token against the number of tokens, for three widths."""
    dims = sorted({r["dim"] for r in records})
    dims = dims if len(dims) <= 3 else [dims[0], dims[len(dims) // 2], dims[-1]]
    lines = {
        "softmax": ("softmax (SDPA)", SOFTMAX, "-"),
        "textbook": ("InLine, textbook", TEXTBOOK, "-"),
        "inline": ("InLineAttention", INLINE, "-"),
        "inline global": ("InLineAttention(local=False)", INLINE, "--"),
        "four products": ("four products", GREY, ":"),
    }
    kinds = {"forward": "forward, µs a token", "step": "forward + backward, µs a token", "memory": "peak memory, kB a token"}
    figure = Figure(figsize=(4 * len(dims), 9), layout="constrained")
    axes = figure.subplots(3, len(dims), sharex=True, squeeze=False)
    for column, dim in enumerate(dims):
        chosen = sorted((r for r in records if r["dim"] == dim), key=lambda r: r["tokens"])
        tokens = [r["tokens"] for r in chosen]
        ticks = [t for t, before in zip(tokens, [0, *tokens], strict=False) if t > 2 * before]
        for row, (kind, label) in enumerate(kinds.items()):
            axis = axes[row][column]
            for name, (text, colour, style) in lines.items():
                values = [_per_token(r, kind, name) for r in chosen]
                if not all(map(isnan, values)):
                    axis.plot(tokens, values, style, color=colour, label=text, marker="o", markersize=3)
            logarithmic(axis, ticks)
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(f"C = {dim}")
        axes[-1][column].set_xlabel("tokens in a picture")
    axes[0][0].legend(fontsize=8)
    return figure


def _per_token(record: Record, kind: str, name: str) -> float:
    count: int = record["batch"] * record["tokens"]
    return peak(record, name) / count / 1e3 if kind == "memory" else 1e6 * seconds(record, kind, name) / count
