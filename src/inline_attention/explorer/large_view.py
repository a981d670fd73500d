"""The tab of an image that is larger than memory: its thumbnail is clicked, and the models take the whole image behind it.

The image is chosen where the server starts, never on the page. An answer depends on the model and the point alone; the last
ones are kept, as each takes as long as streaming the image.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import gradio as gr
from PIL import Image

from ..analysis.attention import layer_label
from ..analysis.maps import QueryMap
from ..data.transforms import normalisation
from ..large.attention_maps import watch_point
from ..large.image_reader import open_image
from ..large.large_image import LargeImage
from ..large.stages import check_model
from ..large.stream import stream_maps
from ..large.valid_point import check_point_has_data
from ..large.valid_rows import masked_reader
from .answers import MODELS, RunningAnswers, refuse
from .inspect import ONE_PASS
from .model_cache import ModelCache
from .render import overlay

KEPT = 8
"""Answers: of a model at a point."""


class LargeView:
    """An image file, and what the points of it look at.

    Args:
        name: of the file.
        open_file: opens it at the resolution at which the models take it.
        small: its thumbnail.
    """

    def __init__(self, name: str, open_file: Callable[[], LargeImage], small: Image.Image) -> None:
        self.name, self.open_file, self.small = name, open_file, small
        self._kept: OrderedDict[tuple[str, tuple[float, float]], list[QueryMap]] = OrderedDict()
        self._lock = Lock()

    def maps(
        self, models: ModelCache, label: str, point: tuple[float, float], report: Callable[[int, int], None]
    ) -> list[QueryMap]:
        """The maps of one point (y, x), in every layer that attends over the whole image."""
        with self._lock:
            if (label, point) in self._kept:
                return self._kept[label, point]
        trained = models.take(label)
        model = check_model(trained.model, "a large image")
        mean, std = normalisation(trained.data)
        image = self.open_file()
        try:
            check_point_has_data(image, point)
            reader = open_image(image, channels=trained.data.channels, mean=mean, std=std)
            with ONE_PASS, watch_point(model, (image.height, image.width), point) as watched:
                stream_maps(model, masked_reader(model, reader, None), progress=report)
        finally:
            image.close()
        found = watched.maps
        if not found:
            raise ValueError(f"{label} has no layer that attends over the whole image")
        with self._lock:
            self._kept[label, point] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def draw(self, found: Sequence[QueryMap], layer: int, head: int) -> tuple[Image.Image, str]:
        """The global weights of one layer, counted from 1, over the thumbnail; and the layer in words."""
        one = found[min(max(layer, 1), len(found)) - 1]
        weights = one.mixed[0].mean(0) if head == 0 else one.mixed[0, min(head, one.mixed.shape[1]) - 1]
        only = replace(one, local=None)
        drawn = overlay(self.small, weights * only.mixed[0, 0].numel() - 1, one.query, one.grid, one.span)
        return drawn, f"{layer_label(one.layer)}, {one.size} tokens"


def large_tab(view: LargeView, models: ModelCache, running: RunningAnswers, controls: Sequence[Any]) -> None:
    """The tab, and what its clicks and the page's controls answer.

    Args:
        controls: models, layer and head of the page.
    """
    with gr.Tab(f"The whole of {view.name}"):
        gr.Markdown(
            "Click a point: the models take the whole image, in bands, and show what the point weighs over all of it, in the "
            "layer of the slider above. The first answer for a point takes as long as reading the image."
        )
        with gr.Row():
            small = gr.Image(
                view.small, label=view.name, interactive=False, buttons=["fullscreen"], elem_id="large", sources=[]
            )
            drawn = gr.Gallery(label="Global weights", columns=2, elem_id="large-maps", interactive=False, object_fit="contain")
        with gr.Row():
            down = gr.Slider(0, 1, 0.5, step=0.001, label="Point: down", elem_id="large-down")
            across = gr.Slider(0, 1, 0.5, step=0.001, label="Point: across", elem_id="large-across")
        answer = running.counted(_answer(view, models, running))

        def click(
            labels: list[str],
            layer: int,
            head: int,
            event: gr.SelectData,
            progress: gr.Progress = gr.Progress(),  # noqa: B008
        ) -> list[Any]:
            x, y = event.index
            point = (round(min(1.0, max(0.0, y / view.small.height)), 3), round(min(1.0, max(0.0, x / view.small.width)), 3))
            return [*point, answer(*point, labels, layer, head, progress)]

        order: dict[str, Any] = {"concurrency_id": "looks", "concurrency_limit": 1, "trigger_mode": "always_last"}
        small.select(click, [*controls], [down, across, drawn], **order)
        for control in (down, across):
            control.release(answer, [down, across, *controls], drawn, **order)


def _answer(view: LargeView, models: ModelCache, running: RunningAnswers) -> Callable[..., list[tuple[Image.Image, str]]]:
    def answer(
        down: float,
        across: float,
        labels: list[str],
        layer: int,
        head: int,
        progress: gr.Progress = gr.Progress(),  # noqa: B008
    ) -> list[tuple[Image.Image, str]]:
        if not labels:
            raise refuse("No model is chosen: pick one to four.")

        def report(done: int, total: int) -> None:
            running.check()
            progress((done, total), unit="bands")

        found = []
        try:
            for label in labels[:MODELS]:
                maps = view.maps(models, label, (float(down), float(across)), report)
                drawn, words = view.draw(maps, int(layer), int(head))
                found.append((drawn, f"{label}: {words}"))
        except (ValueError, RuntimeError, OSError) as error:
            raise refuse(str(error).splitlines()[0]) from error
        return found

    return answer
