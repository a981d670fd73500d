"""Bags of tile features as a dataset: a folder of files and a table of labels, with splits by patient."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from .bag_file import COORD_FOLDERS, SUFFIXES, read_channels, read_features
from .config import DataConfig, Target
from .datasets import ImageDataset, file_entry
from .labels_table import LabelsTable, SlideRow, match_slides, read_labels, split_patients
from .splits import ALL, NoSplitError, Source, canonical

FEATURE_FOLDERS = ("h5_files", "pt_files")
"""Folders of CLAM's layout: the first has coordinates too."""


@dataclass(frozen=True)
class BagDataset(ImageDataset):
    """Bags with labels."""

    table: LabelsTable
    paths: tuple[Path, ...]
    """One for each row of the table."""
    unlabelled: int = 0
    """Files of the folder that have no row."""
    missing: tuple[str, ...] = ()
    """A line for each row without a file."""

    def __len__(self) -> int:
        return len(self.paths)

    @override
    def name(self, index: int) -> str:
        return str(self.paths[index])

    @override
    def load(self, index: int, channels: int = 0) -> tuple[Any, Any]:
        """The tiles, and the target as `LabelsTable` has it; `channels` are those of images."""
        return read_features(self.paths[index]), self.table.rows[index].target

    @override
    def labels(self) -> Sequence[int] | None:
        return [int(row.target) for row in self.table.rows if not isinstance(row.target, tuple)] if self._classes else None

    @override
    def files(self) -> Sequence[str]:
        return [row.slide for row in self.table.rows]

    @override
    def digest(self) -> str:
        return self.table.digest()

    @override
    def entries(self) -> Sequence[str]:
        pairs = zip(self.table.rows, self.paths, strict=True)
        return [f"{file_entry(row.slide, path)}\t{row.target}" for row, path in pairs]

    @property
    def _classes(self) -> bool:
        return self.table.target == "class"

    def channels(self) -> int:
        """Channels of the features."""
        return read_channels(self.paths[0])

    @classmethod
    def find(cls, root: Path) -> list[Path]:
        """All files of a folder that may be of slides."""
        return find_bags(root)

    def choose(self, indices: Sequence[int]) -> "BagDataset":
        """Some of the bags."""
        table = replace(self.table, rows=tuple(self.table.rows[index] for index in indices))
        return replace(self, table=table, paths=tuple(self.paths[index] for index in indices))


def find_bags(root: Path) -> list[Path]:
    """All files of tile features below a folder, or in CLAM's `h5_files` or `pt_files`; of one slide the `.h5`."""
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}")
    root = next((root / name for name in FEATURE_FOLDERS if (root / name).is_dir()), root)
    found: dict[Path, Path] = {}
    for path in sorted(root.rglob("*"), key=lambda path: (SUFFIXES.index(path.suffix) if path.suffix in SUFFIXES else 9, path)):
        inside = path.relative_to(root).parts
        hidden = any(part.startswith(".") for part in inside) or any(part in COORD_FOLDERS for part in inside[:-1])
        if path.suffix.lower() in SUFFIXES and not hidden and path.is_file():
            found.setdefault(path.with_suffix(""), path)
    if not found:
        raise ValueError(f"{root} has no files of tile features: their names end in {', '.join(SUFFIXES)}")
    return sorted(found.values())


def open_bags(data: DataConfig, target: Target = "auto", kind: type[BagDataset] = BagDataset) -> Source:
    """The slides of a recipe, to train on and to validate, by the table's splits or by a share of its patients.

    Args:
        data: their folder and table.
        target: what the labels are.
        kind: of dataset: of bags, or of images.
    """
    whole = _open(data, target, None, kind)
    splits = whole.table.splits
    name = canonical(data.val)
    train = _of_split(whole, "train") if splits else whole
    if not len(train):
        raise ValueError(f"{data.labels} has the splits {', '.join(splits)}, but no slide to train on")
    bad, classes = whole.missing, whole.table.classes
    if name == "train":
        return Source(train, train, classes, bad, split=name)
    if name in splits:
        return Source(train, _of_split(whole, name), classes, bad, split=name)
    if name != "val":
        raise NoSplitError(data.labels, data.val, splits)
    trained, held = split_patients(train.table.rows, data.val_share, data.labels, stratify=whole.table.target == "class")
    what = "the training patients" if splits else "the patients"
    note = f"{100 * data.val_share:g} % of {what}, split off by a hash of their names"
    return Source(train.choose(trained), train.choose(held), classes, bad, split_note=note)


def open_bag_split(
    data: DataConfig, split: str | None, target: Target, classes: Sequence[str], kind: type[BagDataset] = BagDataset
) -> Source:
    """One split of the slides as `val`, for a model with these classes; all of them where the table has no splits."""
    whole = _open(data, target, classes, kind)
    splits = whole.table.splits or (ALL,)
    name = canonical(split or (ALL if splits == (ALL,) else "val"))
    if name not in splits:
        raise NoSplitError(data.labels, split or name, splits)
    chosen = whole if name == ALL else _of_split(whole, name)
    return Source(chosen, chosen, tuple(classes), whole.missing, split=name)


def _open(data: DataConfig, target: Target, classes: Sequence[str] | None, kind: type[BagDataset]) -> BagDataset:
    root = Path(data.source).expanduser()
    if not data.labels:
        raise ValueError(f"{root} needs a table with the labels of its slides: --labels FILE.csv")
    table = read_labels(Path(data.labels).expanduser(), data.columns, target, classes)
    found = match_slides(table, kind.find(root), root, skip_missing=data.skip_bad)
    return kind(found.table, found.files, found.unlabelled, found.bad)


def _of_split(whole: BagDataset, split: str) -> BagDataset:
    rows: Sequence[SlideRow] = whole.table.rows
    return whole.choose([index for index, row in enumerate(rows) if row.split == split])
