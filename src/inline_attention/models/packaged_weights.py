"""Weights inside the package: small models trained on digits and clothes, by timm's tags, such as inline_swin_nano.digits.

`weights/README.md` beside the files says how each was trained and what it reaches.
"""

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from timm.models import split_model_name_tag

CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


@dataclass(frozen=True)
class Packaged:
    """What a file of the package was trained on."""

    data: str
    """The source of its images, for `inline train --data`."""
    classes: tuple[str, ...]
    size: int
    """Height and width of its images."""
    channels: int = 3
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model besides its size, channels and classes."""

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of `timm.create_model` that make the model of the file."""
        return {"img_size": self.size, "in_chans": self.channels, "num_classes": len(self.classes), **self.arguments}


DIGITS: dict[str, Any] = {"data": "digits", "classes": tuple("0123456789"), "size": 16}
FASHION: dict[str, Any] = {"data": "fashion-mnist", "classes": CLOTHES, "size": 28, "channels": 1}
PACKAGED = {
    "inline_deit_nano.digits": Packaged(**DIGITS, arguments={"patch_size": 2}),
    "inline_swin_nano.digits": Packaged(**DIGITS, arguments={"patch_size": 1}),
    "inline_deit_nano.fashion_mnist": Packaged(**FASHION, arguments={"patch_size": 4}),
    "inline_swin_nano.fashion_mnist": Packaged(**FASHION, arguments={"patch_size": 2}),
}
"""The files, by the names that timm has for them."""


def packaged_path(name: str) -> Path | None:
    """The file of a name with a tag; None if the package has none."""
    return Path(str(files("inline_attention") / "weights" / f"{name}.safetensors")) if name in PACKAGED else None


def tags_of(name: str) -> list[str]:
    """Names, with their tags, of a model's files in the package."""
    return [known for known in PACKAGED if split_model_name_tag(known)[0] == name]
