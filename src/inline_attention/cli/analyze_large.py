"""`inline analyze maps --stream`: what a point of an image looks at that is larger than memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from ..lite.text import printable
from .analyze_inputs import load_models, to_draw
from .arguments import prepare_folder, usable_device
from .large_thumbnail import open_thumbnail
from .main import warn
from .progress import step_counter

if TYPE_CHECKING:
    import torch

    from ..analysis.maps import QueryMap
    from ..data.config import DataConfig
    from ..models.backbone import Backbone
    from .analyze_maps import AnalyzeMaps

LONGEST = 480
"""Side of the thumbnail that maps are drawn over."""


class _Subject(NamedTuple):
    label: str
    model: "Backbone"
    data: "DataConfig"
    multiple: int
    """What the sides of the image are padded to."""


def point_maps(options: "AnalyzeMaps", point: tuple[float, float]) -> Iterator[tuple[str, list["QueryMap"]]]:
    """Stream the image through one model after the other: the model's name, and the maps of the point."""
    from ..data.transforms import normalisation
    from ..large.attention_maps import watch_point
    from ..large.image_reader import open_image
    from ..large.pyramid_maps import padded
    from ..large.stream import stream_maps
    from ..large.valid_point import check_point_has_data
    from ..large.valid_rows import masked_reader

    device = usable_device(options.device)
    prepare_folder(options.out)
    for subject in _subjects(options, device):
        mean, std = normalisation(subject.data)
        opened = options.large.open(str(options.image))
        try:
            check_point_has_data(opened, point)
            reader = open_image(opened, channels=subject.data.channels, mean=mean, std=std)
            whole = padded(masked_reader(subject.model, reader, None), subject.multiple)
            label = f"{printable(Path(str(options.image)).name)}: {subject.label}"
            with (
                watch_point(
                    subject.model, (whole.height, whole.width), point, unpadded=(opened.height, opened.width)
                ) as watched,
                step_counter(label, Console(stderr=True), "band") as progress,
            ):
                stream_maps(subject.model, whole, folder=options.folder, progress=progress)
        finally:
            opened.close()
        if not watched.maps:
            raise ValueError(
                f"{subject.label} has no layer that attends over the whole image: all are in windows or to reduced keys"
            )
        if watched.left_out:
            warn(f"{subject.label}: {len(watched.left_out)} layers attend in windows or to reduced keys: left out")
        yield subject.label, watched.maps


def _subjects(options: "AnalyzeMaps", device: "torch.device") -> Iterator[_Subject]:
    """The models: classifiers, and the backbones of segmenters."""
    from ..dense.segmenter import COARSEST_STRIDE, Segmenter
    from ..large.stages import check_model
    from ..training.dense_task import load_dense
    from ..training.load_trained import task_named

    if not options.models:
        raise ValueError("no model: give runs' folders, files of weights, or names such as inline_deit_nano")
    for given in options.models:
        if Path(given).exists() and task_named(given) == "segment":
            dense = load_dense(given)
            assert isinstance(dense.model, Segmenter)
            backbone = check_model(dense.model.backbone.bare(), "--stream").to(device).eval()
            yield _Subject(Path(given).name, backbone, dense.task.recipe.data, COARSEST_STRIDE)
            continue
        (one,) = load_models([given], pretrained=options.pretrained, seed=options.seed, device=device)
        yield _Subject(one.subject.label, check_model(one.trained.model, "--stream"), one.trained.data, 1)


def image_to_draw(options: "AnalyzeMaps") -> "torch.Tensor":
    """(H, W, 3) in 0..1: a thumbnail of the image."""
    if options.image is None or not Path(options.image).exists():
        raise ValueError(f"--stream takes a file: give --image FILE, got {options.image}")
    return to_draw(open_thumbnail(options.large, str(options.image), LONGEST), LONGEST)
