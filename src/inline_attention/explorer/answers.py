"""What the page answers: maps, words and curves for the image, the models and the point that the browser sends.

Every answer is computed from the request alone: there is no session.
"""

from collections.abc import Callable
from functools import wraps
from math import inf
from threading import Condition
from typing import Any, NamedTuple

import gradio as gr
from PIL import Image, ImageOps

from ..lite.decode import BadImageError, decode, open_pillow
from .inspect import Inspection, attention_seconds, inspect_point
from .model_cache import ModelCache
from .render import describe, draw_kernel, draw_locality, draw_map, draw_rays, draw_times

MODELS = 4
LARGEST_IMAGE = 40_000_000
"""Pixels beyond which an image is refused, before it is decoded."""
LARGEST_SIDE = 1024
"""Larger images are resized: the models get far fewer pixels."""
UNREADABLE = "This file is not an image that can be read here: give a whole PNG, JPEG, WebP, TIFF or BMP."
ORIENTATION = 0x0112
"""The EXIF tag: from 5 on the image is turned by 90 degrees."""
SIZES = (96, 128, 192, 224, 256, 320, 384, 448, 512)


class RunningAnswers:
    """Counts the answers that are being computed, so that the process can wait for them before it ends.

    gradio computes them in daemon threads. If the interpreter ended while one of them is inside torch, the process would abort.
    """

    def __init__(self) -> None:
        self._count = 0
        self._closing = False
        self._changed = Condition()

    def counted(self, answer: Callable[..., Any]) -> Callable[..., Any]:
        """The function, counted while it runs."""

        @wraps(answer)  # gradio reads the signature
        def run(*arguments: Any) -> Any:
            with self._changed:
                self._count += 1
            try:
                return answer(*arguments)
            finally:
                with self._changed:
                    self._count -= 1
                    self._changed.notify_all()

        return run

    def check(self) -> None:
        """Raise if the server is ending: for long answers, between two steps."""
        if self._closing:
            raise refuse("The server is ending.")

    def close(self, seconds: float) -> bool:
        """Let long answers end early, and wait until none is being computed; False if that took longer than `seconds`."""
        self._closing = True
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, seconds)


def refuse(message: str) -> gr.Error:
    """An error that the page shows to the visitor; nothing is printed in the server's terminal."""
    return gr.Error(message, print_exception=False)


class PageState(NamedTuple):
    """The values of all controls: what an answer depends on."""

    image: str | None
    models: list[str]
    down: float
    across: float
    layer: int
    head: int
    part: Any
    size: int


def check_upload(preprocess: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """gradio's preprocessing of an upload; a file that is not an image is refused in one line."""

    def check(payload: Any) -> Any:
        if payload is not None and (payload.url or "").startswith("data:"):
            raise refuse("Images are taken as uploads only.")
        try:
            return preprocess(payload)
        except Exception as error:
            raise refuse(UNREADABLE) from error

    return check


def read_image(path: str | None) -> tuple[Image.Image, str]:
    """The image, turned upright, resized if it is large; and a note about the resizing."""
    if path is None:
        raise refuse("There is no image: drop one, or pick a sample.")
    try:
        with open_pillow(path, limit=inf) as opened:
            width, height = opened.size
            if width * height > LARGEST_IMAGE:
                raise refuse(
                    f"{width:,} x {height:,} pixels are more than this page takes ({LARGEST_IMAGE // 10**6} million): make "
                    "the image smaller, or use `inline predict --stream`."
                )
            image = decode(ImageOps.exif_transpose(opened), "the image", 3)
    except FileNotFoundError as error:
        raise refuse("This image was deleted after ten minutes: drop it again.") from error
    except (BadImageError, OSError) as error:
        raise refuse(UNREADABLE) from error
    if max(image.size) <= LARGEST_SIDE:
        return image, ""
    width, height = image.size
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return image, f"{width:,} x {height:,} pixels were made {image.width:,} x {image.height:,}."


def displayed_size(path: str | None) -> tuple[int, int]:
    """Width and height of the image as a browser displays it: turned by its EXIF orientation."""
    if path is None:
        raise refuse("There is no image: drop one, or pick a sample.")
    with open_pillow(path, limit=inf) as opened:
        turned = opened.getexif().get(ORIENTATION, 1) >= 5
        return opened.size[::-1] if turned else opened.size


def inspect_models(model_cache: ModelCache, state: PageState) -> tuple[list[Inspection], str]:
    """The attention of each model, and the note about the image."""
    image, note = read_image(state.image)
    if not state.models:
        raise refuse("No model is chosen: pick one to four.")
    options: dict[str, Any] = {
        "layer": int(state.layer),
        "size": int(state.size) or None,
        "with_rollout": state.part == "all layers",
    }
    try:
        point = (state.down, state.across)
        return [inspect_point(label, model_cache.take(label), image, point, **options) for label in state.models[:MODELS]], note
    except (ValueError, RuntimeError, OSError) as error:
        raise refuse(str(error).splitlines()[0]) from error


def answer(model_cache: ModelCache, state: PageState) -> list[Any]:
    """The first outputs: for each of four places whether it is visible, its map, words and kernel; then the note."""
    found, note = inspect_models(model_cache, state)
    outputs: list[Any] = []
    for one in found:
        kernel = None if one.kernel is None else draw_kernel(one.kernel)
        outputs += [
            gr.update(visible=True),
            gr.update(value=draw_map(one, state.part, int(state.head)), label=one.label),
            gr.update(value=describe(one, state.part, int(state.head))),
            gr.update(visible=kernel is not None, value=kernel),
        ]
    empty = [gr.update(visible=False), gr.update(value=None), gr.update(value=""), gr.update(visible=False, value=None)]
    return [*outputs, *(empty * (MODELS - len(found))), note]


def curves(model_cache: ModelCache, state: PageState) -> list[Any]:
    """The outputs that follow: the query's ray, and its locality by layer."""
    found, _ = inspect_models(model_cache, state._replace(part="together"))
    rays = [one.ray for one in found if one.ray is not None]
    return [draw_rays(rays, int(state.head)), draw_locality({one.label: one.locality for one in found})]


def timing(model_cache: ModelCache, running: RunningAnswers) -> Callable[..., tuple[Image.Image, str]]:
    """A function that times the attention of models at growing sizes."""

    def time(path: str | None, models: list[str], largest: int) -> tuple[Image.Image, str]:
        image, _ = read_image(path)
        if not models:
            raise refuse("No model is chosen: pick one to four.")
        sides = [side for side in SIZES if side <= largest] or [SIZES[0]]
        found: dict[str, list[tuple[int, int, float]]] = {}
        try:
            for label in models[:MODELS]:
                trained = model_cache.take(label)
                found[label] = []
                for side in sides:
                    running.check()
                    seconds, tokens = attention_seconds(label, trained, image, side)
                    found[label].append((side, tokens, seconds))
        except (ValueError, RuntimeError, OSError) as error:
            raise refuse(str(error).splitlines()[0]) from error
        last = [f"{label} {1000 * points[-1][2]:.1f} ms for {points[-1][1]:,} tokens" for label, points in found.items()]
        words = f"At {sides[-1]} pixels a side: {'; '.join(last)}. Best of two, on a machine that others may use too."
        return draw_times(found), words

    return time
