"""Pictures that a trained model is shown: those its run held out, or others with its classes."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..training.pictures import Pictures, Stream
    from ..training.trained import Trained


def held_out(trained: "Trained", model: str, data: str | None, root: str | None, split: str) -> tuple["Pictures | Stream", str]:
    """The pictures, labelled with the model's classes, and what to call them.

    Args:
        model: what the user called the model: a run's folder says itself which pictures it held out.
        data: a source of `inline train`, or a folder of class folders; None for the run's own.
        root, split: of a source that has them.
    """
    from ..training.recipe import DataPart
    from ..training.run_folder import RunFolder
    from ..training.source import by_folder, open_pictures, open_source

    if data is None:
        if not Path(model).is_dir():
            raise ValueError(f"{model} does not say which pictures: --data DIR")
        part = RunFolder(Path(model)).recipe().data
    else:
        part = DataPart(source=data, root=root, val=split)
        folder = Path(data).expanduser()
        named = not folder.exists() or any((folder / name).exists() for name in ("train", "training", "train.tar"))
        if not named:
            return open_pictures(folder, by_folder(trained.classes, [entry.name for entry in folder.iterdir()])), data
    source = open_source(part)
    known = by_folder(trained.classes, source.classes)
    if len(source.classes) != len(known):
        raise ValueError(f"{part.source} has {len(source.classes)} classes, and {model} knows {len(known)}")
    other = [name for name in source.classes if name not in known]
    if other and known != tuple(map(str, range(len(known)))):  # weights without names take any
        raise ValueError(f"{part.source} has a class {other[0]!r}, and {model} knows others: {', '.join(known)}"[:300])
    return source.val, part.source
