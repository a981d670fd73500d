"""A case: one malformed input, made from a seed by a number alone, and the command that reads it."""

import os
import shlex
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from .mutate import mutate
from .targets import TARGETS, Target

ODD_NAMES = (
    b"odd\nname", b"odd\x1b[31mname", b"odd\xff\xfename", b"odd" + b"x" * 200, b"-odd", b" odd ", b"odd%s{0}", b"[bold]odd",
    b"odd\r", "odd\u202ename".encode(), "odd\u0085name".encode(), b"odd'\"name", b"odd,name",
    b"odd\x07name", "\N{GRINNING FACE} odd".encode(),
)  # fmt: skip
"""Names of files and folders, as the system has them. Messages may escape all of a name but `odd`."""
ODD_WORDS = (
    "", "nan", "inf", "-1", "0", "1e400", "1000000000000000000000000", "x", "\x00", "a\nb", "\x1b[31m", "\udcff", "x" * 5000,
    "1,2", "none", "nowhere/..", "/dev/null", "seeds/images/a.png", "seeds/classes", "0x7", "1_000_000_000_000", "٣",
)  # fmt: skip
"""Values of options."""
SECTIONS = tuple(f"{name}." for name in ("task", "model", "data", "augment", "optim", "schedule", "ema", "run"))
"""A value of a recipe may come from the file or from an option: an error about it names the field."""


@dataclass(frozen=True)
class Case:
    """What to run, and what an error has to name."""

    number: int
    target: Target
    damage: str
    """What was done to the input, in words."""
    words: tuple[str, ...]
    """Of `inline`; for Python, the code and its argument."""
    names: tuple[str, ...]
    """One of these must be in the message."""
    stdin: Path | None = None

    def command(self) -> str:
        """The line that repeats the case, in the folder that it was made in."""
        start = "python -c" if self.target.python else "inline"
        line = " ".join([start, *map(_quote, self.words)])
        return line if self.stdin is None else f"{line} < {_quote(str(self.stdin))}"


def _quote(word: str) -> str:
    """A word for bash, whichever characters it has."""
    if word.isprintable() and word.isascii():
        return shlex.quote(word)
    return (
        "$'"
        + "".join(f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b"'\\" else chr(byte) for byte in os.fsencode(word))
        + "'"
    )


@cache
def order(seed: str) -> tuple[Target, ...]:
    """The targets, each as often as its weight says, in an order drawn by the seed; with $FUZZ_ONLY, those with its text."""
    only = os.environ.get("FUZZ_ONLY", "")
    drawn = [target for target in TARGETS if only in f"{target.words} {target.seed}" for _ in range(target.weight)]
    Random(seed).shuffle(drawn)
    return tuple(drawn)


def make_case(seed: str, number: int) -> Case:
    """Make the input of a case in the working directory, in `case/`; what was there before is removed.

    Negative numbers are the inputs that are not malformed: the number is the target's, counted from the end.
    """
    for folder in ("case", "out", "predictions"):
        shutil.rmtree(folder, ignore_errors=True)
    Path("case").mkdir()
    rng = Random(f"{seed} {number}")
    target = TARGETS[number] if number < 0 else order(seed)[number % len(order(seed))]
    if not target.seed:
        value = rng.choice(ODD_WORDS)
        words = _fill(target, value)
        option = words[words.index(value) - 1].lstrip("-")
        names = (option, option.replace("-", "_"), repr(value).strip("'"), *SECTIONS, *target.names)
        return Case(number, target, "value of an option", words, names)
    source, copy = Path("seeds", target.seed), Path("case", Path(target.seed).name)
    if source.is_dir():
        shutil.copytree(source, copy)
    else:
        shutil.copy(source, copy)
    damage, damaged = ("none", copy) if number < 0 else _damage(copy, target, rng)
    if not copy.exists() and not copy.is_symlink():
        copy = damaged
    piped = "-" in target.words.split()
    names = ("odd",) if damage == "odd name" else (copy.name, damaged.name)
    names += ("standard input", "no image") if piped else ()
    names += target.names + ((*SECTIONS, "no folder", "unknown model") if damaged.suffix == ".toml" else ())
    return Case(number, target, damage, _fill(target, str(copy)), names, copy if piped else None)


def keep_case(seed: str, number: int, folder: Path, told: str) -> Path:
    """Make a case once more in a folder of its own, with the seeds beside it and the line that repeats it; returns its path."""
    here, place = Path.cwd(), folder / f"{number:05d}"
    if not (folder / "seeds").exists():
        shutil.copytree("seeds", folder / "seeds")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "seeds").symlink_to("../seeds")
    os.chdir(place)
    try:
        case = make_case(seed, number)
    finally:
        os.chdir(here)
    lines = [f"cd {place}", case.command(), "", f"Damage: {case.damage}", told]
    (place / "repeat.txt").write_text("\n".join(lines), errors="backslashreplace")
    return place


def _fill(target: Target, path: str) -> tuple[str, ...]:
    words = [target.words, "{}"] if target.python else shlex.split(target.words)
    return tuple(word.replace("{}", path) for word in words)


def _damage(copy: Path, target: Target, rng: Random) -> tuple[str, Path]:
    """Damage the copy. Returns what was done, and the damaged file."""
    file = copy
    if copy.is_dir():
        files = [sorted(each for each in copy.glob(pattern) if each.is_file()) for pattern in target.damaged]
        file = rng.choice(rng.choice([each for each in files if each]))
    if target.renamed and rng.random() < 0.25:
        file = file.parent if copy.is_dir() and rng.random() < 0.5 else file  # the folder of a class
        return "odd name", file.rename(file.with_name(os.fsdecode(rng.choice(ODD_NAMES)) + file.suffix))
    if rng.random() < 0.06:
        return _replace(file, rng), file
    done, data = mutate(file.read_bytes(), file.suffix or file.name, rng)
    file.write_bytes(data)
    return done, file


def _replace(file: Path, rng: Random) -> str:
    """Something else at the path of a file."""
    file.unlink()
    kind = rng.choice(("missing", "folder", "link to itself", "link to nothing", "device"))
    if kind == "folder":
        file.mkdir()
    elif kind != "missing":
        file.symlink_to({"link to itself": file.name, "link to nothing": "nowhere", "device": "/dev/null"}[kind])
    return kind
