"""Tables of labels: a CSV with a line for each slide, and what is to be learned of it: a class, several labels, or a number.

A column names the slide; one or several hold its labels; `split` and `patient` are optional. A patient is never in two splits.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import isfinite
from pathlib import Path

from ..lite.decode import first_line
from ..lite.text import check_names, printable
from .config import Target
from .splits import SPELLINGS, canonical

SLIDE_COLUMNS = ("slide_id", "slide", "image_id", "image", "filename", "file", "name")
PATIENT_COLUMNS = ("patient_id", "patient", "case_id", "case")
SPLIT_COLUMNS = ("split",)
LABEL_COLUMNS = ("label", "labels", "class", "target")
"""Names of columns, in any case of letters; the first one that the table has is taken."""
SLIDE_SUFFIXES = (
    ".h5",
    ".hdf5",
    ".pt",
    ".svs",
    ".ndpi",
    ".mrxs",
    ".scn",
    ".dcm",
    ".tif",
    ".tiff",
    ".ome",
    ".png",
    ".jpg",
    ".npy",
)
"""Endings that a slide's name may have in the table and not in the folder, or the other way round."""
MOST_CLASSES = 1000
MOST_BYTES = 2**28


@dataclass(frozen=True)
class SlideRow:
    """One slide of the table."""

    slide: str
    target: int | float | tuple[float, ...]
    """The number of its class; its number; or 0 or 1 for each label."""
    patient: str
    """The slide itself where the table names no patients."""
    split: str | None = None
    """By its canonical name; None where the table has no splits."""


@dataclass(frozen=True)
class LabelsTable:
    """The rows of a table, in its order."""

    path: str
    target: Target
    classes: tuple[str, ...]
    """Names of the classes; of the labels; or of the column with the number, alone."""
    rows: tuple[SlideRow, ...]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that the table names, train, val and test first."""
        found = {row.split for row in self.rows if row.split is not None}
        return (*(name for name in SPELLINGS if name in found), *sorted(found - set(SPELLINGS)))

    def digest(self) -> str:
        """A hash of all slides and their labels, whatever their order."""
        lines = sorted(f"{row.slide}\t{row.target}" for row in self.rows)
        return blake2b("\n".join([*self.classes, *lines]).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def slide_name(name: str) -> str:
    """The name of a slide without folders and endings: the same for a slide, its features and its row.

    Example:
        >>> slide_name("slides/TCGA-01.svs"), slide_name("features/TCGA-01.h5"), slide_name("B.2")
        ('TCGA-01', 'TCGA-01', 'B.2')
    """
    name = name.strip().replace("\\", "/").rpartition("/")[2]
    while name.lower().endswith(SLIDE_SUFFIXES) and "." in name[1:]:
        name = name.rpartition(".")[0]
    return name


def read_labels(
    path: str | Path,
    columns: Sequence[str] = (),
    target: Target = "auto",
    classes: Sequence[str] | None = None,
) -> LabelsTable:
    """Read a table. Whatever is wrong with it is a ValueError of one line that names the line of the file.

    Args:
        path: a CSV with a header; commas, semicolons or tabs between its columns.
        columns: those with labels. None: `label` or one of its kind, or the only other column, or all others if all are 0 or 1.
        target: what the labels are; auto: several columns are labels, numbers with a fraction are numbers, all else is classes.
        classes: a model's, in its order; the table may lack some of them. None: those of the table, sorted.
    """
    header, records = _read_table(Path(path))
    slide_column = _column(header, SLIDE_COLUMNS)
    if slide_column is None:
        raise ValueError(f"{path} has no column that names the slide, such as slide_id; there are: {_listed(header)}")
    patient, split = _column(header, PATIENT_COLUMNS), _column(header, SPLIT_COLUMNS)
    chosen = _label_columns(path, header, records, columns, {slide_column, patient, split})
    kind = _kind(path, records, chosen) if target == "auto" else target
    if kind in ("class", "number") and len(chosen) != 1:
        raise ValueError(f"{path}: one column holds the {kind} of a slide, got {_listed(chosen)}: name one of them")
    names = _class_names(path, records, chosen, kind, classes)
    rows: dict[str, SlideRow] = {}
    for line, record in records:
        where = f"{path}, line {line}"
        name = slide_name(record[slide_column])
        if not name:
            raise ValueError(f"{where}: the column {slide_column} is empty")
        if name in rows:
            raise ValueError(f"{where}: the slide {printable(name)} has a line already: leave one of them")
        if patient is not None and not record[patient]:
            raise ValueError(f"{where}: the column {patient} is empty")
        if split is not None and not record[split]:
            raise ValueError(f"{where}: the column {split} is empty")
        values = [record[column] for column in chosen]
        part = None if split is None else canonical(record[split])
        rows[name] = SlideRow(name, _target(where, chosen, values, kind, names), record[patient] if patient else name, part)
    table = LabelsTable(str(path), kind, names, tuple(rows.values()))
    _check_patients(table)
    return table


def _read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header, and the lines with their numbers."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path} has more than {MOST_BYTES:,} bytes: no table of labels")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a CSV: it is no UTF-8 text, {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or first_line(error)}") from error
    if "\0" in text:
        raise ValueError(f"{path} is not a CSV: it has zero bytes")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    lines = csv.reader(text.splitlines(), delimiter=delimiter, strict=True)
    try:
        rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ValueError(f"{path}, line {lines.line_num}: {error}") from error
    if len(rows) < 2:
        raise ValueError(f"{path} has no slides: it needs a header and a line for each slide")
    header = rows[0][1]
    check_names(header, path)
    if doubled := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"{path} has two columns {doubled[0]!r}: rename one of them")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise ValueError(f"{path}, line {line}: {len(row)} columns, and the header has {len(header)}")
    return header, [(line, dict(zip(header, row, strict=True))) for line, row in rows[1:]]


def _column(header: Sequence[str], known: Sequence[str]) -> str | None:
    lower = {name.lower(): name for name in reversed(header)}
    return next((lower[name] for name in known if name in lower), None)


def _label_columns(
    path: str | Path,
    header: Sequence[str],
    records: Sequence[tuple[int, Mapping[str, str]]],
    given: Sequence[str],
    taken: set[str | None],
) -> tuple[str, ...]:
    if missing := [name for name in given if name not in header]:
        raise ValueError(f"{path} has no column {missing[0]!r}; there are: {_listed(header)}")
    if given:
        return tuple(dict.fromkeys(given))
    if (usual := _column(header, LABEL_COLUMNS)) is not None:
        return (usual,)
    left = tuple(name for name in header if name not in taken)
    if not left:
        raise ValueError(f"{path} has no column with labels; there are: {_listed(header)}")
    if len(left) == 1 or all(record[name] in ("0", "1") for _, record in records for name in left):
        return left
    raise ValueError(f"{path} has several columns that may be labels ({_listed(left)}): name those that are, --data.columns")


def _kind(path: str | Path, records: Sequence[tuple[int, Mapping[str, str]]], columns: Sequence[str]) -> Target:
    if len(columns) > 1:
        return "labels"
    values = {record[columns[0]] for _, record in records}
    numbers = [_number(value) for value in values]
    if any(number is None for number in numbers):
        return "class"
    if any(number is not None and number != int(number) for number in numbers):
        return "number"
    if len(values) > 20 and 2 * len(values) > len(records):
        raise ValueError(
            f"{path}: {columns[0]} has {len(values)} different whole numbers: say --task.target number, or --task.target class"
        )
    return "class"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _class_names(
    path: str | Path,
    records: Sequence[tuple[int, Mapping[str, str]]],
    columns: Sequence[str],
    kind: Target,
    known: Sequence[str] | None,
) -> tuple[str, ...]:
    if kind != "class":
        if known is not None and tuple(known) != tuple(columns):
            raise ValueError(f"{path} has the labels {_listed(columns)}, and the model knows {_listed(known)}: --data.columns")
        return tuple(columns)
    values = {record[columns[0]] for _, record in records}
    found = sorted(values, key=lambda text: (_number(text) is None, _number(text) or 0.0, text))
    check_names(found, path)
    if "" in found:
        line = next(line for line, record in records if not record[columns[0]])
        raise ValueError(f"{path}, line {line}: the column {columns[0]} is empty")
    if known is not None:
        if other := [name for name in found if name not in known]:
            raise ValueError(f"{path} has a class {other[0]!r}, and the model knows others: {_listed(known)}")
        return tuple(known)
    if not 2 <= len(found) <= MOST_CLASSES:
        raise ValueError(f"{path}: {columns[0]} has {len(found)} classes: from 2 to {MOST_CLASSES:,} are possible")
    return tuple(found)


def _target(
    where: str, columns: Sequence[str], values: Sequence[str], kind: Target, classes: Sequence[str]
) -> int | float | tuple[float, ...]:
    if kind == "class":
        return classes.index(values[0])
    for column, value in zip(columns, values, strict=True):
        number = _number(value)
        if number is None:
            raise ValueError(f"{where}: {column} must be a number, got {printable(value)!r}")
        if kind == "labels" and number not in (0, 1):
            raise ValueError(f"{where}: {column} must be 0 or 1, got {printable(value)!r}")
    return float(values[0]) if kind == "number" else tuple(map(float, values))


def _check_patients(table: LabelsTable) -> None:
    """Raise if a patient is in two splits."""
    seen: dict[str, SlideRow] = {}
    for row in table.rows:
        before = seen.setdefault(row.patient, row)
        if before.split != row.split:
            raise ValueError(
                f"{table.path}: the patient {printable(row.patient)} is in two splits, {before.split} with {before.slide} and "
                f"{row.split} with {row.slide}: a model would be scored on a patient that it was trained on"
            )


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 200 else f"{text[:200]}..."


@dataclass(frozen=True)
class MatchedSlides:
    """Slides that have a row and a file."""

    table: LabelsTable
    files: tuple[Path, ...]
    """One for each row of the table."""
    unlabelled: int
    """Files without a row, which are left out."""
    bad: tuple[str, ...] = ()
    """A line for each row without a file, with `skip_missing`."""


def match_slides(table: LabelsTable, files: Sequence[Path], where: object, *, skip_missing: bool = False) -> MatchedSlides:
    """The file of each row, by the slide's name. Rows without a file, and two files of one slide, are ValueErrors of one line.

    Args:
        table: the labels.
        files: of the slides.
        where: their folder, for messages.
        skip_missing: leave out rows without a file.
    """
    by_name: dict[str, Path] = {}
    for file in files:
        other = by_name.setdefault(slide_name(file.name), file)
        if other != file:
            raise ValueError(f"{other} and {file} are both of the slide {slide_name(file.name)}: keep one of them elsewhere")
    missing = [row.slide for row in table.rows if row.slide not in by_name]
    if len(missing) == len(table.rows):
        raise ValueError(f"{where} has no file of any slide of {table.path}, such as {printable(missing[0])}")
    if missing and not skip_missing:
        more = f" and of {len(missing) - 1} more slides" if len(missing) > 1 else ""
        raise ValueError(
            f"{where} has no file of the slide {printable(missing[0])}{more} of {table.path} (--skip-bad goes on without)"
        )
    rows = tuple(row for row in table.rows if row.slide in by_name)
    return MatchedSlides(
        replace(table, rows=rows),
        tuple(by_name[row.slide] for row in rows),
        len(by_name) - len(rows),
        tuple(f"{where} has no file of the slide {printable(slide)}" for slide in missing),
    )


def split_patients(rows: Sequence[SlideRow], share: float, where: object, *, stratify: bool) -> tuple[list[int], list[int]]:
    """Indices of (training, validation): a share of the patients (of each class), by a hash of their names.

    Args:
        rows: the slides.
        share: of the patients that are for validation; one of each class at least, where it has two.
        where: the table, for messages.
        stratify: the targets are classes. A patient with several classes counts as one of the first slide's.
    """
    patients: dict[str, int | float | tuple[float, ...]] = {}
    for row in rows:
        patients.setdefault(row.patient, row.target if stratify else 0)
    groups: dict[object, list[str]] = {}
    for patient, target in patients.items():
        groups.setdefault(target, []).append(patient)
    val: set[str] = set()
    for members in groups.values():
        members.sort(key=lambda name: blake2b(name.encode("utf-8", "surrogatepass")).digest())
        val |= set(members[: min(max(1, round(share * len(members))), len(members) - 1)])
    if not val:
        raise ValueError(
            f"{where}: {len(patients)} patients are too few to take some for validation: name them in a column split"
        )
    held = [index for index, row in enumerate(rows) if row.patient in val]
    return [index for index, row in enumerate(rows) if row.patient not in val], held
