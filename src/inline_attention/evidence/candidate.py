"""A candidate: one model of a comparison, described by what distinguishes it from the others."""

from dataclasses import dataclass

TITLES = {"inline": "InLine", "angular": "linear angular"}
FAMILIES = {"deit": "DeiT", "pvt": "PVT", "swin": "Swin", "cswin": "CSwin"}


@dataclass(frozen=True)
class Candidate:
    """The settings that may differ between candidates; all others come from the scale."""

    mixer: str
    """A name of `MIXERS`."""
    local: bool = False
    """Whether the attention carries the local residual."""
    kernel: str | None = None
    """A name of `KERNELS`; None: the mixer's default."""
    family: str = "deit"
    """A key of `FAMILIES`."""
    window: float | None = None
    """Side of the InLine windows of a Swin, as a fraction of the side of the first feature map; None: global."""
    finer: float = 1.0
    """Tokens along a side, as a multiple of the scale's."""
    width: float = 1.0
    """Channels, as a multiple of the scale's."""
    longer: float = 1.0
    """Training steps, as a multiple of the scale's."""
    equal: bool = False
    """Whether training is cut to the multiply-adds, instead of the steps, of softmax attention at the scale's tokens."""
    rate: float = 1.0
    """Learning rate, as a multiple of the common one."""
    base: str | None = None
    """What InLine's covariance term is added to; None: the mean value."""
    scale: float | None = None
    """InLine's scale s, or what a learned one starts as; None: d^-1/2."""
    learned: bool = False
    """Whether InLine's scale is learned, for each head."""

    @property
    def mixer_args(self) -> dict[str, object]:
        """Other arguments of the mixer's class."""
        scale = {"scale": "learned", "start_scale": self.scale} if self.learned else {"scale": self.scale}
        given = {"base": self.base, **scale} if self.mixer == "inline" else {}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def label(self) -> str:
        """Its name in tables and figures."""
        words = [TITLES.get(self.mixer, self.mixer)]
        if self.family != "deit":
            words.insert(0, FAMILIES[self.family])
        if self.kernel is not None:
            words.append(self.kernel)
        if self.base is not None:
            words.append(f"on {self.base}")
        if self.local:
            words.append("+ local")
        scale = "" if self.scale is None else f" {self.scale:g}"
        settings = [
            ("learned scale" + scale.replace(" ", " from ")) if self.learned else scale and f"scale{scale}",
            f"window {self.window:g} of a side" if self.window is not None else "",
            f"{self.finer:g}x tokens a side" if self.finer != 1 else "",
            f"{self.width:g}x width" if self.width != 1 else "",
            f"{self.longer:g}x steps" if self.longer != 1 else "",
            "equal compute" if self.equal else "",
            f"{self.rate:g}x rate" if self.rate != 1 else "",
        ]
        listed = ", ".join(filter(None, settings))
        return " ".join(words) + (f" ({listed})" if listed else "")
