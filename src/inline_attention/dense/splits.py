"""The two parts of a folder: pictures to learn from, and pictures held out."""

from typing import Literal

Split = Literal["train", "val"]


class NoSplitError(ValueError):
    """A folder that does not have the part that was asked for."""
