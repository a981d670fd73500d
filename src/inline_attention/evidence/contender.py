"""A contender: a model as a claim names it, by what sets it apart from the others of the claim."""

from dataclasses import dataclass

TITLES = {"inline": "InLine", "angular": "linear angular"}
FAMILIES = {"deit": "DeiT", "pvt": "PVT", "swin": "Swin", "cswin": "CSwin"}


@dataclass(frozen=True)
class Contender:
    """What is not said here is the same for all contenders, and comes from the scale."""

    mixer: str
    """A name of `MIXERS`."""
    local: bool = False
    """Whether the attention carries the local residual."""
    kernel: str | None = None
    """A name of `KERNELS`; None: the mixer's own."""
    family: str = "deit"
    """A key of `FAMILIES`."""
    window: float | None = None
    """How much of a side of the first map InLine blocks of a Swin see; None: all of it."""
    finer: float = 1.0
    """Tokens along a side, over those of the scale."""
    width: float = 1.0
    """Channels, over those of the scale."""
    longer: float = 1.0
    """Steps, over those of the scale."""
    equal: bool = False
    """Trained for as many multiply-adds as softmax attention at the scale's own tokens, instead of as many steps."""
    rate: float = 1.0
    """Learning rate, over that of all others."""

    @property
    def label(self) -> str:
        """What tables call it."""
        words = [TITLES.get(self.mixer, self.mixer)]
        if self.family != "deit":
            words.insert(0, FAMILIES[self.family])
        if self.kernel is not None:
            words.append(self.kernel)
        if self.local:
            words.append("+ local")
        said = [
            f"window {self.window:g} of a side" if self.window is not None else "",
            f"{self.finer:g}x tokens a side" if self.finer != 1 else "",
            f"{self.width:g}x width" if self.width != 1 else "",
            f"{self.longer:g}x steps" if self.longer != 1 else "",
            "equal compute" if self.equal else "",
            f"{self.rate:g}x rate" if self.rate != 1 else "",
        ]
        named = ", ".join(filter(None, said))
        return " ".join(words) + (f" ({named})" if named else "")
