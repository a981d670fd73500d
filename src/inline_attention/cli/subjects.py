"""Models to look at, and the pictures that all of them are shown."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from ..analysis.study import Subject
    from ..training.trained import Trained


FLATTEST = 2.5
"""Width over height, or the reverse, of the flattest picture that figures show as it is."""


@dataclass(frozen=True)
class Loaded:
    """A model as the user named it, and as it is looked at."""

    what: str
    trained: "Trained"
    subject: "Subject"


@dataclass(frozen=True)
class Shown:
    """Pictures, their classes where they have any, and where they are from."""

    pictures: list["Image.Image"]
    labels: list[int] | None
    source: str
    classes: tuple[str, ...] = ()
    """What the labels mean, as the first model has it."""


def load_subjects(names: Sequence[str], *, pretrained: bool, seed: int, device: "torch.device") -> list[Loaded]:
    """Runs' folders, files of weights, and names of models, which are untrained unless their weights are to be fetched."""
    from ..analysis.study import Subject
    from ..training.trained import load_trained, make_named
    from ..training.view import evaluation_view

    if not names:
        raise ValueError("no model: give runs' folders, files of weights, or names such as inline_deit_nano")
    found = []
    labels = _labels(names)
    for what, label in zip(names, labels, strict=True):
        there = Path(what).exists()
        trained = load_trained(what) if there else make_named(what, pretrained=pretrained, seed=seed)
        if not there and not pretrained:
            label = f"{label} (untrained)"
        found.append(Loaded(what, trained, Subject(label, trained.model.to(device), _fitting(trained, evaluation_view))))
    return found


def _fitting(trained: "Trained", view: Callable[..., Any]) -> Callable[["Image.Image"], "torch.Tensor"]:
    """From a picture, grey or not, to what the model takes of it."""
    show, mode = view(trained.data), "RGB" if trained.data.channels == 3 else "L"
    return lambda picture: show(picture.convert(mode))


def load_pictures(loaded: Sequence[Loaded], count: int, *, data: str | None, root: str | None, split: str, seed: int) -> Shown:
    """Some of the pictures that are held out, drawn by the seed: the data's, or the first run's; without either, samples.

    They have labels if their classes are those of the first run, or of the first model.
    """
    import torch

    from ..analysis.samples import SAMPLES, sample
    from ..training.pictures import Stream
    from ..training.recipe import DataPart
    from ..training.source import open_source
    from .held_out import held_out

    if count < 1:
        raise ValueError(f"--count must be positive, got {count}")
    first = next((one for one in loaded if Path(one.what).is_dir()), loaded[0])
    if data is None and not Path(first.what).is_dir():
        return Shown([sample(name) for name in SAMPLES][:count], None, "sample pictures")
    labelled = True
    try:
        held, source = held_out(first.trained, first.what, data, root, split)
    except ValueError:
        if data is None:
            raise
        labelled, source = False, data  # pictures of other classes can be looked at all the same
        held = open_source(DataPart(source=data, root=root, val=split)).val
    if isinstance(held, Stream):
        raise ValueError(f"{source} comes as a stream: pictures can be drawn from folders, archives and data sets only")
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(seed)).tolist()[:count]
    both = [held.load(index, 3) for index in order]
    labels = [label for _, label in both] if labelled else None
    return Shown([picture for picture, _ in both], labels, source, first.trained.classes)


def open_one(picture: str | None, shown: Shown) -> tuple["Image.Image", str]:
    """The picture of a file, a sample by its name, or the first of those that are shown."""
    from ..analysis.samples import SAMPLES, sample
    from ..plain.decode import decode

    if picture is None:
        return shown.pictures[0], f"the first of {shown.source}"
    if picture in SAMPLES and not Path(picture).exists():
        return sample(picture), picture
    if not Path(picture).is_file():
        raise ValueError(f"{picture} is neither a file nor a sample; samples are: {', '.join(SAMPLES)}")
    return decode(Path(picture).open("rb"), picture, 3), picture


def whole_picture(one: Loaded, picture: "Image.Image") -> "torch.Tensor":
    """(1, C, H, W): all of the picture, as the model takes it."""
    from ..training.view import whole_view

    return _fitting(one.trained, whole_view)(picture)[None].to(next(one.subject.model.parameters()).device)


def to_draw(picture: "Image.Image", most: int = 480) -> "torch.Tensor":
    """(H, W, 3) in 0..1, no larger than a figure needs, and no flatter."""
    import numpy as np
    import torch

    small = picture.convert("RGB")
    small.thumbnail((most, most))
    least = round(max(small.size) / FLATTEST)
    small = small.resize((max(small.width, least), max(small.height, least)))
    return torch.from_numpy(np.asarray(small) / np.float32(255))


def _labels(names: Sequence[str]) -> list[str]:
    """Short names that differ."""
    short = [Path(name).name or name for name in names]
    twice = Counter(short)
    found = [name if twice[end] > 1 else end for name, end in zip(names, short, strict=True)]
    repeated = [label for label, times in Counter(found).items() if times > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} is given more than once")
    return found
