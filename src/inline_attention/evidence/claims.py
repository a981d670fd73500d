"""The claims, as data: who is compared with whom, by which number, what the paper reports, and what is ours to add.

A claim is a list of checks. Each says that one number is above another by more than `beyond`, and is judged by the interval of
their difference over seeds. Softmax attention with the local residual is the control that the paper does not have: it tells
what the residual does from what linear attention does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..layers import MIXERS
from ..ops.kernels import KERNELS
from .contender import FAMILIES, Contender

NEAR = -1.0
"""Points of accuracy that count as 'no gap': A closes the gap to B if A - B is above this."""
BREAKDOWN = 10.0
"""Points of accuracy that count as 'breaks down'."""
LOCAL_GAP = "InLine + local has no gap to softmax + local"
"""The control that the paper does not have, in words."""
RATES = (0.5, 2.0)
"""Learning rates that contenders are checked with, over the common one."""


@dataclass(frozen=True)
class Side:
    """A number of a contender."""

    contender: Contender
    metric: str = "top1"


@dataclass(frozen=True)
class Check:
    """left - right > beyond; or, where `than` is given, (left - right) - (than's left - than's right) > beyond."""

    says: str
    left: Side
    right: Side
    beyond: float = 0.0
    than: tuple[Side, Side] | None = None
    reported: tuple[float | None, float | None] = (None, None)
    """What the paper reports of both sides, on ImageNet."""
    ours: bool = False
    """A control that the paper does not have."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what must be seen for it to hold."""

    name: str
    title: str
    paper: str
    """What it says, in this package's words (Han et al., NeurIPS 2024)."""
    checks: tuple[Check, ...]
    extra: tuple[Contender, ...] = ()
    """Shown beside the others, in no check."""
    rated: tuple[Contender, ...] = ()
    """Contenders whose learning rate is checked."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """All numbers that it needs, each once."""
        pairs = [(check.left, check.right, *(check.than or ())) for check in self.checks]
        shown = [Side(contender) for contender in self.extra]
        return tuple(dict.fromkeys([side for pair in pairs for side in pair] + shown))

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All models that it needs, each once."""
        return tuple(dict.fromkeys(side.contender for side in self.sides))

    def name_of(self, contender: Contender) -> str:
        """What its table and its figure call a contender: with the family, where there are several."""
        several = len({one.family for one in self.contenders}) > 1
        return f"{FAMILIES['deit']} {contender.label}" if several and contender.family == "deit" else contender.label


SOFTMAX, INLINE, LINEAR = Contender("softmax"), Contender("inline"), Contender("linear")
SOFTMAX_LOCAL, INLINE_LOCAL = replace(SOFTMAX, local=True), replace(INLINE, local=True)
FIVE = (INLINE_LOCAL, SOFTMAX_LOCAL, INLINE, SOFTMAX, LINEAR)
REPORTED = {
    "softmax": 72.2, "linear": 70.5, "hydra": 68.3, "efficient": 70.2, "angular": 70.8, "enhanced": 72.9, "focused": 74.1,
    "inline": 74.5,
}  # fmt: skip
"""ImageNet top-1 of DeiT-T with each attention, reported by the paper."""
FAMILY_REPORTED = {"deit": (74.5, 72.2), "pvt": (78.2, 75.1), "swin": (82.4, 81.3), "cswin": (83.2, 82.7)}
"""ImageNet top-1 of the smallest model of each family, (InLine, softmax), reported by the paper."""


def above(says: str, left: Contender, right: Contender, beyond: float = 0.0, **more: object) -> Check:
    """A check of accuracies."""
    return replace(Check(says, Side(left), Side(right), beyond), **more)  # type: ignore[arg-type]


def _kernels() -> Claim:
    """Of each kernel, with the mixer's own one called by no name, so that cells are shared with other claims."""
    checks = []
    for kernel in KERNELS:
        injective = INLINE if kernel == "identity" else replace(INLINE, kernel=kernel)
        divided = LINEAR if kernel == "relu" else replace(LINEAR, kernel=kernel)
        checks.append(above(f"{kernel}: subtracting the mean beats dividing by the sum", injective, divided))
    identity = replace(LINEAR, kernel="identity")
    leaky = replace(LINEAR, kernel="leaky_relu")
    checks += [
        above("identity, divided by the sum, breaks down", INLINE, identity, BREAKDOWN),
        above("leaky_relu, divided by the sum, breaks down", replace(INLINE, kernel="leaky_relu"), leaky, BREAKDOWN),
        above("identity, with the mean subtracted, does not: no gap to linear with relu", INLINE, LINEAR, NEAR),
    ]
    paper = (
        "With every kernel InLine beats linear attention, and it trains with identity, with which linear attention breaks down."
    )
    return Claim(
        "kernels", "Kernels: linear against injective", paper, tuple(checks), (SOFTMAX, SOFTMAX_LOCAL), (identity, leaky)
    )


def _windows() -> Claim:
    swin = Contender("inline", local=True, family="swin")
    checks = []
    for window in (None, 0.5, 0.25):
        seen = replace(swin, window=window)
        where = "global" if window is None else f"window of {window:g} of a side"
        checks.append(above(f"{where}: the local residual helps", seen, replace(seen, local=False)))
    for window in (0.5, 0.25):
        for local in (True, False):
            wide = replace(swin, local=local)
            says = f"{'with' if local else 'without'} the residual, global beats a window of {window:g} of a side"
            checks.append(above(says, wide, replace(wide, window=window)))
    control = replace(swin, mixer="softmax")
    checks.append(above("the residual helps softmax in windows too", control, replace(control, local=False), ours=True))
    paper = "InLine gains as its windows grow, up to the whole map, and the local residual adds to it at every size."
    return Claim("windows", "The local residual, and how far a token sees", paper, tuple(checks))


def _mixers() -> Claim:
    checks = []
    for mixer in MIXERS:
        if mixer == "inline":
            continue
        rival = Contender(mixer)
        reported = REPORTED["inline"], REPORTED[mixer]
        checks.append(above(f"InLine + local beats {rival.label}", INLINE_LOCAL, rival, reported=reported))
    checks += [
        above("InLine alone has no gap to softmax alone", INLINE, SOFTMAX, NEAR, ours=True),
        above(LOCAL_GAP, INLINE_LOCAL, SOFTMAX_LOCAL, NEAR, ours=True),
        above("InLine + local beats softmax + local", INLINE_LOCAL, SOFTMAX_LOCAL, ours=True),
        above("the residual helps InLine", INLINE_LOCAL, INLINE, ours=True),
        above("the residual helps softmax", SOFTMAX_LOCAL, SOFTMAX, ours=True),
        above("InLine alone beats linear alone", INLINE, LINEAR, ours=True),
    ]
    for mixer in MIXERS:
        if mixer not in ("inline", "softmax"):
            rival = Contender(mixer, local=True)
            checks.append(above(f"InLine + local beats {rival.label}", INLINE_LOCAL, rival, ours=True))
    paper = "On DeiT-T InLine beats softmax and six other linear attentions, as their authors have them."
    rated = (*map(Contender, MIXERS), INLINE_LOCAL, SOFTMAX_LOCAL)
    return Claim("mixers", "Eight attentions on one DeiT", paper, tuple(checks), rated=rated)


def _families() -> Claim:
    checks = []
    for family, title in FAMILIES.items():
        inline, softmax = (replace(one, family=family) for one in (INLINE_LOCAL, SOFTMAX))
        everywhere = " in all blocks" if family in ("swin", "cswin") else ""  # not all of which are InLine's in the other
        checks += [
            above(f"{title}: InLine + local beats softmax", inline, softmax, reported=FAMILY_REPORTED[family]),
            above(f"{title}: {LOCAL_GAP}{everywhere}", inline, replace(softmax, local=True), NEAR, ours=True),
            above(f"{title}: InLine alone has no gap to softmax alone", replace(inline, local=False), softmax, NEAR, ours=True),
        ]
    paper = "In each of four families the smallest InLine model beats the softmax one."
    return Claim("families", "InLine against softmax in four families", paper, tuple(checks))


def _seeing() -> Claim:
    def seen(says: str, left: tuple[Contender, str], right: tuple[Contender, str], *, ours: bool = False) -> Check:
        return Check(says, Side(*left), Side(*right), ours=ours)

    checks = (
        seen("linear confuses more pairs of queries than InLine", (LINEAR, "confused"), (INLINE, "confused")),
        seen("linear confuses more pairs of queries than softmax", (LINEAR, "confused"), (SOFTMAX, "confused")),
        seen("softmax looks at its 3 x 3 more than evenly, in its first layer", (SOFTMAX, "near"), (SOFTMAX, "even")),
        seen("softmax looks at its 3 x 3 more than linear does", (SOFTMAX, "near"), (LINEAR, "near")),
        seen("hiding the own 3 x 3 costs softmax more than hiding 9 at random", (SOFTMAX, "random"), (SOFTMAX, "own")),
        seen("hiding the own 3 x 3 costs linear more than hiding 9 at random", (LINEAR, "random"), (LINEAR, "own")),
        seen("hiding the own 3 x 3 costs InLine more than hiding 9 at random", (INLINE, "random"), (INLINE, "own")),
        seen(
            "hiding the own 3 x 3, and with it all of the residual, costs InLine + local more than hiding 9 at random",
            (INLINE_LOCAL, "random"),
            (INLINE_LOCAL, "own"),
            ours=True,
        ),
        seen(
            "hiding the own 3 x 3, and with it all of the residual, costs softmax + local more than hiding 9 at random",
            (SOFTMAX_LOCAL, "random"),
            (SOFTMAX_LOCAL, "own"),
            ours=True,
        ),
    )
    paper = (
        "Linear attention confuses queries more than softmax and InLine do; softmax looks near by in its first layer; "
        "hiding neighbours hurts more than hiding as many tokens at random."
    )
    shown = tuple(Contender(mixer, local=local) for mixer in MIXERS for local in (False, True))
    return Claim("seeing", "Confusion, locality, masking", paper, checks, shown)


SPEED_FACTORS = (1, 2, 4, 8)
"""Sides of the pictures that are timed, over the scale's."""


def _speed() -> Claim:
    def faster(rival: Contender, factor: int, *, ours: bool) -> Check:
        says = f"InLine + local is faster than {rival.label} at {factor}x the side"
        metric = f"speed_{factor}x"
        return Check(says, Side(INLINE_LOCAL, metric), Side(rival, metric), ours=ours)

    *near, far = SPEED_FACTORS
    ends = [(Side(INLINE_LOCAL, f"speed_{factor}x"), Side(SOFTMAX, f"speed_{factor}x")) for factor in (far, near[0])]
    more = Check(f"the more so at {far}x than at {near[0]}x", *ends[0], than=ends[1])
    checks = [faster(SOFTMAX, far, ours=False), more]
    checks += [faster(SOFTMAX, factor, ours=True) for factor in near]
    rivals = (SOFTMAX_LOCAL, *(Contender(mixer) for mixer in MIXERS if mixer not in ("inline", "softmax")))
    checks += [faster(rival, far, ours=True) for rival in rivals]
    paper = "InLine runs faster than softmax, the more so the larger the picture. Accuracy, at 1x, stands beside it."
    return Claim("speed", "Speed, beside accuracy", paper, tuple(checks), (INLINE,))


LENGTHS = (1.0, 4.0)
RESOLUTIONS = (1.0, 2.0)


def at_equal_compute(contender: Contender, finer: float) -> Contender:
    """With so many times the tokens a side, for as long as the longest runs of softmax at the scale's own tokens cost."""
    return replace(contender, finer=finer, longer=LENGTHS[-1], equal=True)


def _resolution() -> Claim:
    coarse, fine = RESOLUTIONS
    checks = []
    for left, right in ((INLINE_LOCAL, SOFTMAX), (INLINE_LOCAL, SOFTMAX_LOCAL), (INLINE, SOFTMAX)):
        ours = (left, right) != (INLINE_LOCAL, SOFTMAX)
        name = f"{left.label} against {right.label}"
        few, many = ((Side(at_equal_compute(left, finer)), Side(at_equal_compute(right, finer))) for finer in RESOLUTIONS)
        checks += [
            Check(f"{name}: ahead with {fine:g}x tokens a side", *many, ours=ours),
            Check(f"{name}: ahead with {coarse:g}x tokens a side", *few, ours=True),
            Check(f"{name}: gains from {coarse:g}x to {fine:g}x tokens a side", *many, than=few, ours=ours),
        ]
    paper = (
        "At equal compute linear attention can look at more tokens, and pulls ahead there. (Here: smaller patches of the same "
        "pictures, and fewer steps where a step costs more.)"
    )
    return Claim("resolution", "Accuracy against tokens, at equal compute", paper, tuple(checks))


WIDTHS = (0.5, 1.0)


def _gaps(where: str, changed: Callable[[Contender], Contender]) -> list[Check]:
    """The same three questions of models that were all changed alike."""
    inline, softmax, linear = (changed(one) for one in (INLINE, SOFTMAX, LINEAR))
    return [
        above(f"{where}: InLine alone beats linear alone", inline, linear, ours=True),
        above(f"{where}: InLine alone has no gap to softmax alone", inline, softmax, NEAR, ours=True),
        above(f"{where}: {LOCAL_GAP}", changed(INLINE_LOCAL), changed(SOFTMAX_LOCAL), NEAR, ours=True),
    ]


def _width() -> Claim:
    checks = [check for width in WIDTHS for check in _gaps(f"{width:g}x width", partial(replace, width=width))]
    paper = "It does not say how its claims depend on the width of a model; this is ours to ask."
    return Claim("width", "Where it grows or vanishes: width", paper, tuple(checks))


def _length() -> Claim:
    checks = [check for longer in LENGTHS for check in _gaps(f"{longer:g}x steps", partial(replace, longer=longer))]
    last, first = ([Side(replace(one, longer=LENGTHS[end])) for one in (INLINE, LINEAR)] for end in (-1, 0))
    says = f"InLine alone gains on linear alone from {LENGTHS[0]:g}x to {LENGTHS[-1]:g}x steps"
    checks.append(Check(says, last[0], last[1], than=(first[0], first[1]), ours=True))
    paper = "It trains for 300 epochs of ImageNet, and does not say what is seen early; this is ours to ask."
    return Claim("length", "Where it grows or vanishes: length of training", paper, tuple(checks))


CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        _kernels(), _windows(), _mixers(), _families(), _seeing(), _speed(), _resolution(), _width(), _length(),
    )
}  # fmt: skip


def trained(claims: Sequence[Claim]) -> list[Contender]:
    """The models that these claims need, each once; those of the rate checks at the end."""
    found = [contender for claim in claims for contender in claim.contenders]
    rated = [replace(one, rate=rate) for rate in RATES for claim in claims for one in claim.rated]
    return list(dict.fromkeys(found + rated))
