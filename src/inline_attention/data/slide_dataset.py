"""Slides as whole images: a folder of image files and a table of labels. The task opens the files, and reads them by rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from .bag_dataset import BagDataset
from .bag_file import SUFFIXES
from .labels_table import SLIDE_SUFFIXES

IMAGE_SUFFIXES = tuple(suffix for suffix in (*SLIDE_SUFFIXES, ".jpeg", ".zarr", ".webp", ".bmp") if suffix not in SUFFIXES)
"""Endings of the names of images."""


@dataclass(frozen=True)
class SlideDataset(BagDataset):
    """Image files with labels."""

    @override
    def load(self, index: int, channels: int = 0) -> tuple[Path, Any]:
        """The file, and the target as `LabelsTable` has it."""
        return self.paths[index], self.table.rows[index].target

    @classmethod
    @override
    def find(cls, root: Path) -> list[Path]:
        """All images below a folder; a Zarr image is a folder."""
        if not root.is_dir():
            raise ValueError(f"there is no folder {root}")
        found = []
        for path in sorted(root.rglob("*")):
            inside = path.relative_to(root).parts
            hidden = any(part.startswith(".") for part in inside) or any(part.endswith(".zarr") for part in inside[:-1])
            if path.name.lower().endswith(IMAGE_SUFFIXES) and not hidden and (path.is_file() or path.suffix == ".zarr"):
                found.append(path)
        if not found:
            raise ValueError(f"{root} has no images: their names end in {', '.join(IMAGE_SUFFIXES)}")
        return found
