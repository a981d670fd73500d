"""The page: a picture, up to four models, and what they look at from the point that is clicked.

Every answer is computed from what the browser sends: there is no session, and uploads are taken away with the server.
"""

import os
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported: nothing is sent anywhere

import gradio as gr
from PIL import Image, ImageOps
from starlette.middleware import Middleware

from ..analysis.samples import SAMPLES, sample
from ..plain.decode import BadPictureError, decode
from .guard import Guard
from .looking import Look, attention_seconds, heads_and_layers, look
from .paint import describe, paint, paint_kernel, paint_locality, paint_rays, paint_times
from .shelf import Shelf

MODELS = 4
LARGEST_FILE = "20mb"
LARGEST_PICTURE = 40_000_000
"""Pixels beyond which a picture is refused, before it is decoded."""
UNREADABLE = "This file is not a picture that can be read here: give a whole PNG, JPEG, WebP, TIFF or BMP."
ORIENTATION = 0x0112
"""The EXIF tag: from 5 on the picture lies on its side."""
FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP")
LARGEST_SIDE = 1024
"""Larger pictures are made smaller: the models see far fewer pixels."""
SIZES = (96, 128, 192, 224, 256, 320, 384, 448, 512)
PARTS = [
    ("together", "together"),
    ("global", "global"),
    ("local", "local"),
    ("all layers (rollout)", "all layers"),
]
CSS = """
footer { display: none !important; }
.maps > * { min-width: 240px; }
#picture img { cursor: crosshair; }
"""


def refuse(message: str) -> gr.Error:
    """What the page tells a visitor, and not the server's terminal."""
    return gr.Error(message, print_exception=False)


class Asked(NamedTuple):
    """All that an answer depends on."""

    picture: str | None
    models: list[str]
    down: float
    across: float
    layer: int
    head: int
    part: Any
    size: int


def telling(preprocess: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What gradio does with an upload, but for a file that is no picture: that is told in one line."""

    def told(payload: Any) -> Any:
        if payload is not None and (payload.url or "").startswith("data:"):
            raise refuse("Pictures are taken as uploads only.")
        try:
            return preprocess(payload)
        except Exception as error:
            raise refuse(UNREADABLE) from error

    return told


def read_picture(path: str | None) -> tuple[Image.Image, str]:
    """The picture, upright, made smaller if it is large, and what was done to it."""
    if path is None:
        raise refuse("There is no picture: drop one, or pick a sample.")
    try:
        with Image.open(path, formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > LARGEST_PICTURE:
                raise refuse(
                    f"{width:,} x {height:,} pixels are more than this page takes ({LARGEST_PICTURE // 10**6} million): make "
                    "the picture smaller, or use `inline predict --stream`."
                )
            picture = decode(ImageOps.exif_transpose(opened), "the picture", 3)
    except FileNotFoundError as error:
        raise refuse("This picture was deleted after ten minutes: drop it again.") from error
    except (BadPictureError, OSError, Image.DecompressionBombError) as error:
        raise refuse(UNREADABLE) from error
    if max(picture.size) <= LARGEST_SIDE:
        return picture, ""
    width, height = picture.size
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    return picture, f"{width:,} x {height:,} pixels were made {picture.width:,} x {picture.height:,}."


def shown_size(path: str | None) -> tuple[int, int]:
    """Width and height of the picture as a browser shows it: turned as the camera says."""
    if path is None:
        raise refuse("There is no picture: drop one, or pick a sample.")
    with Image.open(path, formats=FORMATS) as opened:
        turned = opened.getexif().get(ORIENTATION, 1) >= 5
        return opened.size[::-1] if turned else opened.size


def looks(shelf: Shelf, asked: Asked) -> tuple[list[Look], str]:
    """What each of the models looks at, and what was done to the picture."""
    picture, note = read_picture(asked.picture)
    if not asked.models:
        raise refuse("No model is chosen: pick one to four.")
    options: dict[str, Any] = {"layer": int(asked.layer), "size": int(asked.size) or None, "follow": asked.part == "all layers"}
    try:
        point = (asked.down, asked.across)
        return [look(label, shelf.take(label), picture, point, **options) for label in asked.models[:MODELS]], note
    except (ValueError, RuntimeError) as error:
        raise refuse(str(error).splitlines()[0]) from error


def answer(shelf: Shelf, asked: Asked) -> list[Any]:
    """What the page shows first: for each of four places whether it is there, its map, words and kernel; then a note."""
    found, note = looks(shelf, asked)
    outputs: list[Any] = []
    for one in found:
        kernel = None if one.kernel is None else paint_kernel(one.kernel)
        outputs += [
            gr.update(visible=True),
            gr.update(value=paint(one, asked.part, int(asked.head)), label=one.label),
            gr.update(value=describe(one, asked.part, int(asked.head))),
            gr.update(visible=kernel is not None, value=kernel),
        ]
    empty = [gr.update(visible=False), gr.update(value=None), gr.update(value=""), gr.update(visible=False, value=None)]
    return [*outputs, *(empty * (MODELS - len(found))), note]


def curves(shelf: Shelf, asked: Asked) -> list[Any]:
    """What it shows next: the query's ray, and its locality by layer."""
    found, _ = looks(shelf, asked._replace(part="together"))
    rays = [one.ray for one in found if one.ray is not None]
    return [paint_rays(rays, int(asked.head)), paint_locality({one.label: one.near for one in found})]


def build(shelf: Shelf) -> gr.Blocks:
    """The page over the models of the shelf."""
    with gr.Blocks(title="inline explore", analytics_enabled=False, delete_cache=(60, 600)) as page:
        gr.Markdown(
            "# What do they look at?\nDrop a picture or pick a sample, choose one to four models, and click a point: each "
            "model shows what the token there weighs. **Red is more than an even share, blue less, and negative beyond one "
            "share.** The weights are exact, for linear attention too."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                picture = gr.Image(
                    sample(SAMPLES[0]), label="Picture: click a point", type="filepath", image_mode=None,
                    sources=["upload", "clipboard"], height=320, elem_id="picture", alt_text="The picture that the models see",
                )  # fmt: skip
                picture.preprocess = telling(picture.preprocess)  # type: ignore[method-assign, assignment]
                samples = gr.Radio([*SAMPLES], label="Samples", value=SAMPLES[0], elem_id="samples")
                note = gr.Markdown("", elem_id="note")
            with gr.Column(scale=1, min_width=280):
                models = gr.Dropdown(
                    shelf.choices(), value=shelf.first(), multiselect=True, max_choices=MODELS, allow_custom_value=True,
                    label="Models", info="One to four: runs, ours, or any vision transformer of timm's", elem_id="models",
                )  # fmt: skip
                part = gr.Radio(PARTS, value="together", label="Weights", elem_id="part")
                with gr.Row():
                    layer = gr.Slider(1, 12, 1, step=1, label="Layer", elem_id="layer")
                    head = gr.Slider(0, 8, 0, step=1, label="Head (0: mean)", elem_id="head")
                with gr.Row():
                    down = gr.Slider(0, 1, 0.5, step=0.01, label="Point: down", elem_id="down")
                    across = gr.Slider(0, 1, 0.5, step=0.01, label="Point: across", elem_id="across")
                size = gr.Dropdown(
                    [("the model's own", 0), *((f"{side} x {side}", side) for side in SIZES)], value=0,
                    label="Size of the picture", elem_id="size",
                )  # fmt: skip
        places = []
        with gr.Row(elem_classes="maps"):
            for number in range(MODELS):
                with gr.Column(min_width=240, visible=number < len(shelf.first()), elem_id=f"place{number}") as column:
                    shown = gr.Image(label="", interactive=False, buttons=["download", "fullscreen"], elem_id=f"map{number}")
                    words = gr.Markdown("", elem_id=f"words{number}")
                    kernel = gr.Image(
                        show_label=False, interactive=False, height=250, visible=False, buttons=[],
                        elem_id=f"kernel{number}",
                    )  # fmt: skip
                    places += [column, shown, words, kernel]
        with gr.Tab("Ray: the query shorter and longer"):
            rays = gr.Image(label="Ray", show_label=False, interactive=False, buttons=["download"], elem_id="rays")
        with gr.Tab("Locality by layer"):
            near = gr.Image(label="Locality", show_label=False, interactive=False, buttons=["download"], elem_id="near")
        with gr.Tab("Time by size"):
            largest = gr.Slider(SIZES[0], SIZES[-1], 224, step=32, label="Up to so many pixels a side", elem_id="largest")
            said = gr.Markdown("Move the slider to time the attention of the chosen models on this machine.", elem_id="timed")
            times = gr.Image(label="Times", show_label=False, interactive=False, buttons=["download"], elem_id="times")

        inputs = [picture, models, down, across, layer, head, part, size]
        _wire(shelf, page, inputs, [*places, note], [rays, near], samples)
        largest.input(
            _timing(shelf), [picture, models, largest], [times, said], show_progress="minimal", trigger_mode="always_last"
        )
    return page


def _timing(shelf: Shelf) -> Callable[..., tuple[Image.Image, str]]:
    def time(path: str | None, models: list[str], largest: int) -> tuple[Image.Image, str]:
        picture, _ = read_picture(path)
        if not models:
            raise refuse("No model is chosen: pick one to four.")
        sides = [side for side in SIZES if side <= largest] or [SIZES[0]]
        found: dict[str, list[tuple[int, int, float]]] = {}
        try:
            for label in models[:MODELS]:
                trained = shelf.take(label)
                found[label] = []
                for side in sides:
                    seconds, tokens = attention_seconds(label, trained, picture, side)
                    found[label].append((side, tokens, seconds))
        except (ValueError, RuntimeError) as error:
            raise refuse(str(error).splitlines()[0]) from error
        last = [f"{label} {1000 * points[-1][2]:.1f} ms for {points[-1][1]:,} tokens" for label, points in found.items()]
        return paint_times(
            found
        ), f"At {sides[-1]} pixels a side: {'; '.join(last)}. Best of two, on a machine that others may use too."

    return time


def _wire(shelf: Shelf, page: gr.Blocks, inputs: list[Any], maps: list[Any], drawn: list[Any], samples: gr.Radio) -> None:
    """What happens when: the maps are answered at once, the curves after them.

    A click moves the point too, a sample the picture, a choice of models the ends of the sliders.
    """
    picture, models, down, across, layer, head, part, size = inputs

    def show(*values: Any) -> list[Any]:
        return answer(shelf, Asked(*values))

    def draw(*values: Any) -> list[Any]:
        return curves(shelf, Asked(*values))

    def clicked(event: gr.SelectData, *values: Any) -> list[Any]:
        asked = Asked(*values)
        width, height = shown_size(asked.picture)
        x, y = event.index
        point = (round(min(1.0, max(0.0, y / height)), 2), round(min(1.0, max(0.0, x / width)), 2))
        return [*point, *answer(shelf, asked._replace(down=point[0], across=point[1]))]

    def chosen(*values: Any) -> list[Any]:
        asked = Asked(*values)
        answered = answer(shelf, asked)
        opened, _ = read_picture(asked.picture)
        ends = [heads_and_layers(label, shelf.take(label), opened) for label in asked.models[:MODELS]]
        heads, layers = (max(end) for end in zip(*ends, strict=True))
        bounds = [
            gr.update(maximum=layers, value=min(asked.layer, layers)), gr.update(maximum=heads, value=min(asked.head, heads))
        ]  # fmt: skip
        return [*bounds, *answered]

    order: dict[str, Any] = {"concurrency_id": "looks", "concurrency_limit": 1}  # no answer is overtaken by an older one
    quick: dict[str, Any] = {"show_progress": "minimal", "trigger_mode": "always_last", **order}
    later: dict[str, Any] = {"show_progress": "hidden", **order}
    for control in (layer, head, part, size, down, across):
        control.input(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    picture.select(clicked, inputs, [down, across, *maps], **quick).success(draw, inputs, drawn, **later)
    picture.upload(lambda: None, None, samples).then(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    samples.input(sample, samples, picture, **quick).then(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    models.change(chosen, inputs, [layer, head, *maps], **quick).success(draw, inputs, drawn, **later)
    page.load(chosen, inputs, [layer, head, *maps], show_progress="minimal", **order).success(draw, inputs, drawn, **later)


def serve(shelf: Shelf, *, host: str = "127.0.0.1", port: int | None = None, open_browser: bool = False) -> None:
    """Serve the page until interrupted; uploads live in a folder that goes with the server.

    Args:
        host: the address to listen at: this machine only, unless told otherwise.
        port: a free one from 7860 on if None.
    """
    with tempfile.TemporaryDirectory(prefix="inline-explore-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        page = build(shelf)
        page.queue(default_concurrency_limit=2, max_size=64)
        _, address, _ = page.launch(
            server_name=host, server_port=port, share=False, inbrowser=open_browser, quiet=True, prevent_thread_lock=True,
            max_file_size=LARGEST_FILE, show_error=True, footer_links=[], ssr_mode=False, enable_monitoring=False, css=CSS,
            app_kwargs={"middleware": [Middleware(Guard)]},
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )  # fmt: skip
        print(f"{address}  (Ctrl-C ends it)", flush=True)  # noqa: T201
        page.block_thread()
    del os.environ["GRADIO_TEMP_DIR"]
