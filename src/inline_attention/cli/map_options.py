"""The options of `inline predict --task segment --stream`: what is written of each image, and which images a process has."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class MapOptions:
    """What is written of a segmented image, and which images this process has."""

    out_format: Literal["cog", "ome-tiff", "ome-zarr"] | None = None
    """Format of the maps; unset: as --out ends, in a folder COG for what lies on the earth, else OME-TIFF."""
    probabilities: Literal["uint8", "float16", "float32"] | None = None
    """Write the probability of each class instead of labels, in this type; uint8 holds 255 times as much."""
    polygons: Path | None = None
    """Write the areas of the classes as GeoJSON too: a file, for several images a folder."""
    shard: str | None = None
    """Take every n-th image only, i/n: --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT."""

    def refuse(self) -> None:
        """Raise if one of these is given, where they mean nothing."""
        for field in fields(self):
            if getattr(self, field.name) is not None:
                option = f"--{field.name.replace('_', '-')}"
                raise ValueError(f"{option} is for --stream with a model that segments: leave it out, or give --stream")
