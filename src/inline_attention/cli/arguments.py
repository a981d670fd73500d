"""From the words of a command line to a command's dataclass, and checks of arguments that several commands have."""

from __future__ import annotations

import io
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache, reduce
from operator import or_
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..compat import option_name

if TYPE_CHECKING:
    import torch
    from tyro.constructors import ConstructorRegistry

Options = TypeVar("Options")

RENAMED = {
    "--data.view": "--data.crop-mode",
    "--view": "--crop-mode",
    "--picture": "--image",
}
"""Options of earlier versions, and what they are called now."""
WORDS = {int: "whole number", float: "number", str: "word", Path: "path"}


def parse(kind: type[Options], words: Sequence[str], title: str, default: Options | None = None) -> Options:
    """The dataclass `kind`, filled by tyro; what cannot be understood is a ValueError of one line.

    tyro has no public way to get at an error: it draws a box on the error output and exits with 2. The box is thrown away,
    unread, and `explain` finds the wrong option by the types of the fields. So no layout of tyro's can break this.
    """
    _refuse_repeated(words, kind)
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        parsed, unknown = silent_tyro(kind, prog=f"inline {title}", args=words, return_unknown_args=True, **given)
    except SystemExit as stop:
        if stop.code:
            raise ValueError(explain(words, kind, title)) from stop
        raise
    if unknown:
        raise ValueError(explain_unknown(unknown[0], option_types(kind)))
    if isinstance(seed := getattr(parsed, "seed", None), int):
        from ..training.config import check_seed

        check_seed(seed, "--seed")
    return parsed


MAY_BE_EMPTY = ("--model.args", "--model.swap", "--augment.auto", "--data.images", "--data.masks", "--data.labels")
"""Options whose value may be an empty text."""


def refuse_empty(words: Sequence[str]) -> None:
    """Raise for an argument that is empty, as of a variable of the shell that is not set: it would mean the folder here."""
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if equals and not value.strip() and option not in MAY_BE_EMPTY:
            what = option if option.startswith("--") else "an argument"
            raise ValueError(f"{what} is empty: give a value, or leave it out")


def _refuse_repeated(words: Sequence[str], kind: type) -> None:
    """Raise if an option that takes any number of values is given twice: tyro would take the last one's values alone."""
    types = option_types(kind)
    given = [option.replace("_", "-") for option, _ in _split(words)]
    for option in given:
        hint = types.get(option.removeprefix("--"))
        if given.count(option) > 1 and any(Ellipsis in get_args(part) for part in (hint, *get_args(hint))):
            raise ValueError(f"{option} is given {given.count(option)} times: give all its values after one {option}")


def silent_tyro(kind: Any, **options: Any) -> Any:
    """`tyro.cli` without what it writes to the error output; its own `console_outputs=False` would silence the help too."""
    import tyro

    with redirect_stderr(io.StringIO()), unset_values():
        return tyro.cli(kind, **options)


@cache
def unset_values() -> ConstructorRegistry:
    """What tyro needs to know of options that may be unset: the help has STR for them, and not {None}|STR."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
        if len(kinds) == len(get_args(info.type)) or not kinds:
            return None
        plain = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(_either(kinds), set(info.markers)))
        if not isinstance(plain, PrimitiveConstructorSpec) or not isinstance(plain.nargs, int):
            return None
        return replace(
            plain,
            nargs=plain.nargs if plain.nargs == 1 else (1, plain.nargs),
            choices=plain.choices and (*plain.choices, "None"),
            instance_from_str=lambda words: None if words == ["None"] else plain.instance_from_str(words),
            is_instance=lambda value: value is None or plain.is_instance(value),
            str_from_instance=lambda value: ["None"] if value is None else plain.str_from_instance(value),
        )

    return registry


def _either(kinds: Sequence[Any]) -> Any:
    """The union of some types."""
    return reduce(or_, kinds)


def option_types(kind: type, prefix: str = "") -> dict[str, Any]:
    """All options of a dataclass and of those in it, such as optim.lr, with their types; positionals too."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for entry in (entry for entry in fields(kind) if entry.init):
        hint, given = hints[entry.name], option_name(hints[entry.name])
        name = entry.name.replace("_", "-") if given is None else given
        plain = get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        if is_dataclass(plain) and isinstance(plain, type):
            found |= option_types(plain, f"{prefix}{name}." if name else prefix)
        else:
            found[f"{prefix}{name}"] = plain
    return found


def explain_unknown(word: str, options: dict[str, Any]) -> str:
    """One line about a word that was not understood."""
    if not word.startswith("-"):
        return f"{word!r} is one argument too many"
    option = word.partition("=")[0].replace("_", "-")
    if option in RENAMED:
        return f"{option} is now called {RENAMED[option]}"
    name = option.lstrip("-")
    leaves = {known.rpartition(".")[2]: known for known in reversed(options)}
    pools = (list(options), list(leaves)) if "." in name else (list(leaves), list(options))
    close = [match for pool in pools for match in get_close_matches(name, pool, n=1, cutoff=0.5)]
    return f"unknown option {word}" + (f" (did you mean --{leaves.get(close[0], close[0])}?)" if close else "")


def explain(words: Sequence[str], kind: type, title: str) -> str:
    """One line about why tyro refused the words: the first option whose values do not fit its type, or what is missing."""
    options = option_types(kind)
    for option, values in _split(words):
        hint = options.get(option.lstrip("-").replace("_", "-"))
        if hint in (None, bool):
            continue
        arity, expected = _expected(hint)
        values = values if arity is None else values[:arity]
        try:
            silent_tyro(hint, args=values)
        except SystemExit:
            return f"{option} takes {expected}, got {' '.join(values) or 'nothing'}"
    required = [entry.name.upper() for entry in fields(kind) if entry.default is entry.default_factory is MISSING]
    reason = f"needs {' and '.join(required)}" if required else f"does not understand {shlex.join(words)}"
    return f"inline {title} {reason}: see inline {title} --help"


def _split(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option with the words after it, up to the next option."""
    option: str | None = None
    values: list[str] = []
    for word in [*words, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if option is not None:
            yield option, values
        option, _, value = word.partition("=")
        values = [value] if value else []


def _expected(hint: Any) -> tuple[int | None, str]:
    """How many values a type takes (None: any number), and the values in words."""
    inner = [kind for kind in get_args(hint) if kind is not NoneType]
    if get_origin(hint) is Literal:
        return 1, f"one of {', '.join(map(str, inner))}"
    if get_origin(hint) is tuple:
        word = WORDS.get(inner[0], "value")
        return (None, f"{word}s") if inner[-1] is Ellipsis else (len(inner), f"{len(inner)} {word}s")
    if bool in inner:  # bool | None: unset, unlike a flag
        return 1, "true or false"
    if inner:  # X | None
        return _expected(inner[0])
    return 1, f"a {WORDS.get(hint, 'value')}"


def usable_device(name: str) -> torch.device:
    """The device of that name, after a tensor was put on it."""
    from ..ops.checks import find_device

    return find_device(name)


def prepare_folder(path: Path) -> None:
    """Make the folder, unless it is there, and check that it can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError) as error:
        file = next(part for part in (path, *path.parents) if part.exists())
        raise ValueError(f"{file} is a file, not a folder") from error
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}") from error
