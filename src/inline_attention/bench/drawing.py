"""What the pictures share: colours that the colour-blind can tell apart too (Okabe and Ito's), and logarithmic axes."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

INLINE, SOFTMAX, TEXTBOOK, GREY = "#0072b2", "#d55e00", "#009e73", "#6e6e6e"


def logarithmic(axis: Axes, ticks: Sequence[int]) -> None:
    """Both axes logarithmic, the lower one with these ticks, the other with plain numbers."""
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.tick_params(which="minor", length=0)
    axis.grid(alpha=0.3)
