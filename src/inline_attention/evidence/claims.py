"""The paper's claims as data: which candidates are compared, by which metric, and what the paper reports.

A claim is a list of checks. A check states that one number exceeds another by more than `beyond`; its verdict comes from the
confidence interval of their difference over seeds. Softmax attention with the local residual is a control that the paper does
not have: it separates the effect of the residual from that of linear attention.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..ops.kernels import KERNELS
from .candidate import FAMILIES, Candidate

NEAR = -1.0
"""'No gap' between A and B: A - B is above this many points of accuracy."""
BREAKDOWN = 10.0
"""'Breaks down': a loss of more than this many points of accuracy."""
LOCAL_GAP = "InLine + local has no gap to softmax + local"
"""The statement of the control that the paper does not have."""
RATES = (0.5, 2.0)
"""Multiples of the common learning rate at which candidates are trained too."""


@dataclass(frozen=True)
class Side:
    """One metric of one candidate."""

    candidate: Candidate
    metric: str = "top1"


@dataclass(frozen=True)
class Check:
    """left - right > beyond; or, where `than` is given, (left - right) - (than's left - than's right) > beyond."""

    statement: str
    left: Side
    right: Side
    beyond: float = 0.0
    than: tuple[Side, Side] | None = None
    reported: tuple[float | None, float | None] = (None, None)
    """The paper's numbers for both sides, on ImageNet."""
    ours: bool = False
    """Whether it is a control that the paper does not have."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, and the checks that must hold for it."""

    name: str
    title: str
    paper: str
    """The claim in this package's words (Han et al., NeurIPS 2024)."""
    checks: tuple[Check, ...]
    extra: tuple[Candidate, ...] = ()
    """Candidates that are shown in the table but are in no check."""
    rated: tuple[Candidate, ...] = ()
    """Candidates that are trained at other learning rates too."""
    analyzed: bool = False
    """Whether the trained candidates are analysed: confusion, locality, masking."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """All numbers that the claim needs, without repetition."""
        pairs = [(check.left, check.right, *(check.than or ())) for check in self.checks]
        extra = [Side(candidate) for candidate in self.extra]
        return tuple(dict.fromkeys([side for pair in pairs for side in pair] + extra))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates that the claim needs, without repetition."""
        return tuple(dict.fromkeys(side.candidate for side in self.sides))

    def name_of(self, candidate: Candidate) -> str:
        """The name of a candidate in the claim's table and figure: with its family, if there are several."""
        several = len({one.family for one in self.candidates}) > 1
        return f"{FAMILIES['deit']} {candidate.label}" if several and candidate.family == "deit" else candidate.label


SOFTMAX, INLINE, LINEAR = Candidate("softmax"), Candidate("inline"), Candidate("linear")
SOFTMAX_LOCAL, INLINE_LOCAL = replace(SOFTMAX, local=True), replace(INLINE, local=True)
FIVE = (INLINE_LOCAL, SOFTMAX_LOCAL, INLINE, SOFTMAX, LINEAR)
REPORTED = {
    "inline": 74.5, "softmax": 72.2, "linear": 70.5, "efficient": 70.2, "hydra": 68.3, "angular": 70.8, "enhanced": 72.9,
    "focused": 74.1,
}  # fmt: skip
"""ImageNet top-1 of DeiT-T with each attention that the paper compares, as it reports them."""
FAMILY_REPORTED = {"deit": (74.5, 72.2), "pvt": (78.2, 75.1), "swin": (82.4, 81.3), "cswin": (83.2, 82.7)}
"""ImageNet top-1 of the smallest model of each family, (InLine, softmax), reported by the paper."""


def above(statement: str, left: Candidate, right: Candidate, beyond: float = 0.0, **more: object) -> Check:
    """A check of accuracies: left - right > beyond."""
    return replace(Check(statement, Side(left), Side(right), beyond), **more)  # type: ignore[arg-type]


def _kernels() -> Claim:
    """The mixer's default kernel is left unnamed, so that its trials are shared with other claims."""
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
        above("identity, with the mean subtracted, has no gap to linear with relu", INLINE, LINEAR, NEAR),
    ]
    paper = (
        "InLine beats linear attention with every kernel. It trains well with the identity kernel, with which linear attention "
        "breaks down."
    )
    return Claim(
        "kernels",
        "Kernels: linear against injective attention",
        paper,
        tuple(checks),
        (SOFTMAX, SOFTMAX_LOCAL),
        (identity, leaky),
    )


def _windows() -> Claim:
    swin = Candidate("inline", local=True, family="swin")
    checks = []
    for window in (None, 0.5, 0.25):
        with_local = replace(swin, window=window)
        where = "global" if window is None else f"window of {window:g} of a side"
        checks.append(above(f"{where}: the local residual helps", with_local, replace(with_local, local=False)))
    for window in (0.5, 0.25):
        for local in (True, False):
            unlimited = replace(swin, local=local)
            statement = f"{'with' if local else 'without'} the residual, global beats a window of {window:g} of a side"
            checks.append(above(statement, unlimited, replace(unlimited, window=window)))
    control = replace(swin, mixer="softmax")
    checks.append(above("the residual helps softmax in windows too", control, replace(control, local=False), ours=True))
    paper = "InLine gains as its windows grow, up to global attention, and the local residual helps at every window size."
    return Claim("windows", "The local residual, and the size of windows", paper, tuple(checks))


def _mixers() -> Claim:
    checks = []
    for mixer in REPORTED:
        if mixer == "inline":
            continue
        rival = Candidate(mixer)
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
    for mixer in REPORTED:
        if mixer not in ("inline", "softmax"):
            rival = Candidate(mixer, local=True)
            checks.append(above(f"InLine + local beats {rival.label}", INLINE_LOCAL, rival, ours=True))
    paper = "On DeiT-T InLine beats softmax and six other linear attentions in their authors' versions."
    rated = (*map(Candidate, REPORTED), INLINE_LOCAL, SOFTMAX_LOCAL)
    return Claim("mixers", "Eight kinds of attention in one DeiT", paper, tuple(checks), rated=rated)


def _families() -> Claim:
    checks = []
    for family, title in FAMILIES.items():
        inline, softmax = (replace(one, family=family) for one in (INLINE_LOCAL, SOFTMAX))
        everywhere = " in all blocks" if family in ("swin", "cswin") else ""  # the InLine models have softmax in some blocks
        checks += [
            above(f"{title}: InLine + local beats softmax", inline, softmax, reported=FAMILY_REPORTED[family]),
            above(f"{title}: {LOCAL_GAP}{everywhere}", inline, replace(softmax, local=True), NEAR, ours=True),
            above(f"{title}: InLine alone has no gap to softmax alone", replace(inline, local=False), softmax, NEAR, ours=True),
        ]
    paper = "In each of four families the smallest InLine model beats the smallest softmax model."
    return Claim("families", "InLine against softmax in four families", paper, tuple(checks))


def _attention() -> Claim:
    neighbours = "the 3 x 3 neighbourhood"
    checks = [
        Check(f"linear confuses more pairs of queries than {one.label}", Side(LINEAR, "confused"), Side(one, "confused"))
        for one in (INLINE, SOFTMAX)
    ]
    first_layer = f"softmax puts more than the even share on {neighbours} in its first layer"
    checks += [
        Check(first_layer, Side(SOFTMAX, "near"), Side(SOFTMAX, "even")),
        Check(f"softmax puts more on {neighbours} than linear does", Side(SOFTMAX, "near"), Side(LINEAR, "near")),
    ]
    for one in (SOFTMAX, LINEAR, INLINE, INLINE_LOCAL, SOFTMAX_LOCAL):
        masked = f"{neighbours}, and with it the whole residual," if one.local else neighbours
        statement = f"masking {masked} costs {one.label} more than masking 9 random tokens"
        checks.append(Check(statement, Side(one, "random"), Side(one, "own"), ours=one.local))
    paper = (
        "Linear attention confuses more queries than softmax and InLine do; softmax attends to nearby tokens in its first "
        "layer; masking the neighbourhood of a query costs more accuracy than masking as many random tokens."
    )
    extra = tuple(Candidate(mixer, local=local) for mixer in REPORTED for local in (False, True))
    return Claim("attention", "Confusion, locality, masking", paper, tuple(checks), extra, analyzed=True)


SPEED_FACTORS = (1, 2, 4, 8)
"""Sides of the timed images, as multiples of the training size."""


def _speed() -> Claim:
    def faster(rival: Candidate, factor: int, *, ours: bool) -> Check:
        statement = f"InLine + local is faster than {rival.label} at {factor}x the side"
        metric = f"speed_{factor}x"
        return Check(statement, Side(INLINE_LOCAL, metric), Side(rival, metric), ours=ours)

    *near, far = SPEED_FACTORS
    ends = [(Side(INLINE_LOCAL, f"speed_{factor}x"), Side(SOFTMAX, f"speed_{factor}x")) for factor in (far, near[0])]
    more = Check(f"its advantage over softmax is larger at {far}x than at {near[0]}x", *ends[0], than=ends[1])
    checks = [faster(SOFTMAX, far, ours=False), more]
    checks += [faster(SOFTMAX, factor, ours=True) for factor in near]
    rivals = (SOFTMAX_LOCAL, *(Candidate(mixer) for mixer in REPORTED if mixer not in ("inline", "softmax")))
    checks += [faster(rival, far, ours=True) for rival in rivals]
    paper = "InLine runs faster than softmax, and its advantage grows with the image. The accuracy is that at 1x."
    return Claim("speed", "Speed and accuracy", paper, tuple(checks), (INLINE,))


LENGTHS = (1.0, 4.0)
RESOLUTIONS = (1.0, 2.0)


def at_equal_compute(candidate: Candidate, finer: float) -> Candidate:
    """`finer` times the tokens along a side, with the compute of the longest softmax runs at the scale's tokens."""
    return replace(candidate, finer=finer, longer=LENGTHS[-1], equal=True)


def _resolution() -> Claim:
    coarse, fine = RESOLUTIONS
    checks = []
    for left, right in ((INLINE_LOCAL, SOFTMAX), (INLINE_LOCAL, SOFTMAX_LOCAL), (INLINE, SOFTMAX)):
        ours = (left, right) != (INLINE_LOCAL, SOFTMAX)
        name = f"{left.label} against {right.label}"
        few, many = ((Side(at_equal_compute(left, finer)), Side(at_equal_compute(right, finer))) for finer in RESOLUTIONS)
        checks += [
            Check(f"{name}: ahead with {fine:g}x tokens along a side", *many, ours=ours),
            Check(f"{name}: ahead with {coarse:g}x tokens along a side", *few, ours=True),
            Check(f"{name}: gains from {coarse:g}x to {fine:g}x tokens along a side", *many, than=few, ours=ours),
        ]
    paper = (
        "At equal compute linear attention can process more tokens, and is ahead there. (Here: smaller patches of the same "
        "images, and fewer steps where a step costs more.)"
    )
    return Claim("resolution", "Accuracy against tokens, at equal compute", paper, tuple(checks))


WIDTHS = (0.5, 1.0)


def _gaps(setting: str, change: Callable[[Candidate], Candidate]) -> list[Check]:
    """Three checks between models that were all changed in the same way."""
    inline, softmax, linear = (change(one) for one in (INLINE, SOFTMAX, LINEAR))
    return [
        above(f"{setting}: InLine alone beats linear alone", inline, linear, ours=True),
        above(f"{setting}: InLine alone has no gap to softmax alone", inline, softmax, NEAR, ours=True),
        above(f"{setting}: {LOCAL_GAP}", change(INLINE_LOCAL), change(SOFTMAX_LOCAL), NEAR, ours=True),
    ]


def _width() -> Claim:
    checks = [check for width in WIDTHS for check in _gaps(f"{width:g}x width", partial(replace, width=width))]
    paper = "It does not report how its results depend on the width of a model; these checks are additional."
    return Claim("width", "Dependence on width", paper, tuple(checks))


def _length() -> Claim:
    checks = [check for longer in LENGTHS for check in _gaps(f"{longer:g}x steps", partial(replace, longer=longer))]
    last, first = ([Side(replace(one, longer=LENGTHS[end])) for one in (INLINE, LINEAR)] for end in (-1, 0))
    statement = f"InLine alone gains on linear alone from {LENGTHS[0]:g}x to {LENGTHS[-1]:g}x steps"
    checks.append(Check(statement, last[0], last[1], than=(first[0], first[1]), ours=True))
    paper = "It trains for 300 epochs of ImageNet, and reports no results of shorter training; these checks are additional."
    return Claim("length", "Dependence on the length of training", paper, tuple(checks))


NEWER = ("mala", "rala", "pola", "mhla", "agent", "mila", "nala", "vit3")
"""Attentions that are newer than the paper, each without the gate and the positions that it was published with."""


def _newer() -> Claim:
    checks = [above("InLine + local beats softmax + local", INLINE_LOCAL, SOFTMAX_LOCAL, ours=True)]
    for mixer in NEWER:
        rivals = [Candidate(mixer, local=local) for local in (False, True)]
        checks += [above(f"InLine + local beats {rival.label}", INLINE_LOCAL, rival, ours=True) for rival in rivals]
    for mixer in NEWER:
        confused = [Side(one, "confused") for one in (LINEAR, Candidate(mixer))]
        checks.append(Check(f"linear confuses more pairs of queries than {mixer}", confused[0], confused[1], ours=True))
    paper = (
        "It is older than these eight attentions; these checks are additional. They have no gate, LePE, rotary or "
        "convolutional positions here, so that attention is all that differs. ViT^3 has no weights: its answers are compared."
    )
    extra = tuple(map(Candidate, REPORTED))
    return Claim("newer", "Eight newer kinds of attention", paper, tuple(checks), extra, analyzed=True)


SCALED = (replace(INLINE, scale=4.0), replace(INLINE, learned=True), replace(INLINE, learned=True, scale=4.0))
SUM = replace(INLINE, base="linear")
FAMILY = (INLINE, *SCALED, SUM, replace(SUM, learned=True), LINEAR, Candidate("mala"))
"""The mean value or linear attention's output, plus the covariance term times s, see docs/math.md."""


def _family() -> Claim:
    checks = [above(f"{one.label} beats InLine alone", one, INLINE, ours=True) for one in (*SCALED, SUM)]
    for one in (*SCALED, SUM):
        both = replace(one, local=True)
        checks.append(above(f"{both.label} beats InLine + local", both, INLINE_LOCAL, ours=True))
    checks += [
        above("InLine on linear beats linear alone", SUM, LINEAR, ours=True),
        above("InLine on linear + local beats softmax + local", replace(SUM, local=True), SOFTMAX_LOCAL, ours=True),
    ]
    long = [replace(one, longer=LENGTHS[-1]) for one in (INLINE, *SCALED, SUM)]
    checks += [above(f"{one.label} beats InLine alone", one, long[0], ours=True) for one in long[1:]]
    paper = "It has the fixed scale d^-1/2 and the mean value only; these checks are additional."
    return Claim("family", "The scale of the covariance term, and what it is added to", paper, tuple(checks), FAMILY, FAMILY)


CLAIMS: dict[str, Claim] = {
    claim.name: claim
    for claim in (
        _kernels(), _windows(), _mixers(), _families(), _attention(), _speed(), _resolution(), _width(), _length(),
    )
}  # fmt: skip

MORE_CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (_newer(), _family())}
"""Questions that the paper does not have; they are measured when they are named."""
ALL_CLAIMS = CLAIMS | MORE_CLAIMS

OLD_CLAIMS = {"seeing": "attention"}
"""Names of claims in earlier versions -> their names now."""


def trained(claims: Sequence[Claim]) -> list[Candidate]:
    """The candidates that must be trained, without repetition; those at other learning rates last."""
    found = [candidate for claim in claims for candidate in claim.candidates]
    rated = [replace(one, rate=rate) for rate in RATES for claim in claims for one in claim.rated]
    return list(dict.fromkeys(found + rated))
