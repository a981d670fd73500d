"""The page: its controls, and which function answers which of them."""

from typing import Any

import gradio as gr

from ..analysis.sample_images import SAMPLES, sample_image
from .answers import MODELS, SIZES, PageState, RunningAnswers, answer, check_upload, curves, displayed_size, read_image, timing
from .inspect import heads_and_layers
from .large_view import LargeView, large_tab
from .model_cache import ModelCache

PARTS = [
    ("together", "together"),
    ("global", "global"),
    ("local", "local"),
    ("all layers (rollout)", "all layers"),
]
CSS = """
footer { display: none !important; }
.maps > * { min-width: 240px; }
#image img { cursor: crosshair; }
"""


def build(model_cache: ModelCache, running: RunningAnswers, large: LargeView | None = None) -> gr.Blocks:
    """The page, with the models of the cache. `running` counts the answers that are being computed; `large` has its own tab."""
    with gr.Blocks(title="inline explore", analytics_enabled=False, delete_cache=(60, 600)) as page:
        gr.Markdown(
            "# What do they look at?\nDrop an image or pick a sample, choose one to four models, and click a point: each "
            "model shows what the token there weighs. **Red is more than an even share, blue less, and negative beyond one "
            "share.** The weights are exact, for linear attention too."
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                image = gr.Image(
                    sample_image(model_cache.first_sample()), label="Image: click a point", type="filepath", image_mode=None,
                    sources=["upload", "clipboard"], height=320, elem_id="image", alt_text="The image that the models get",
                )  # fmt: skip
                image.preprocess = check_upload(image.preprocess)  # type: ignore[method-assign, assignment]
                samples = gr.Radio([*SAMPLES], label="Samples", value=model_cache.first_sample(), elem_id="samples")
                note = gr.Markdown("", elem_id="note")
            with gr.Column(scale=1, min_width=280):
                models = gr.Dropdown(
                    model_cache.choices(), value=model_cache.first(), multiselect=True, max_choices=MODELS,
                    allow_custom_value=True,
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
                    label="Size of the image", elem_id="size",
                )  # fmt: skip
        places = _places(model_cache)
        with gr.Tab("Ray: the query shorter and longer"):
            rays = gr.Image(label="Ray", show_label=False, interactive=False, buttons=["download"], elem_id="rays")
        with gr.Tab("Locality by layer"):
            locality = gr.Image(label="Locality", show_label=False, interactive=False, buttons=["download"], elem_id="near")
        with gr.Tab("Time by size"):
            largest = gr.Slider(SIZES[0], SIZES[-1], 224, step=32, label="Up to so many pixels a side", elem_id="largest")
            times_text = gr.Markdown(
                "Move the slider to time the attention of the chosen models on this machine.", elem_id="timed"
            )
            times = gr.Image(label="Times", show_label=False, interactive=False, buttons=["download"], elem_id="times")

        if large is not None:
            large_tab(large, model_cache, running, [models, layer, head])
        inputs = [image, models, down, across, layer, head, part, size]
        _connect(model_cache, running, page, inputs, [*places, note], [rays, locality], samples)
        largest.input(
            running.counted(timing(model_cache, running)),
            [image, models, largest],
            [times, times_text],
            show_progress="minimal",
            trigger_mode="always_last",
        )
    return page


def _places(model_cache: ModelCache) -> list[Any]:
    """The columns of the maps, one for each model: column, map, words and kernel of each, in this order."""
    places: list[Any] = []
    with gr.Row(elem_classes="maps"):
        for number in range(MODELS):
            with gr.Column(min_width=240, visible=number < len(model_cache.first()), elem_id=f"place{number}") as column:
                attention = gr.Image(label="", interactive=False, buttons=["download", "fullscreen"], elem_id=f"map{number}")
                words = gr.Markdown("", elem_id=f"words{number}")
                kernel = gr.Image(
                    show_label=False, interactive=False, height=250, visible=False, buttons=[], elem_id=f"kernel{number}"
                )
                places += [column, attention, words, kernel]
    return places


def _connect(
    model_cache: ModelCache, running: RunningAnswers, page: gr.Blocks, inputs: list[Any], maps: list[Any], drawn: list[Any],
    samples: gr.Radio,
) -> None:  # fmt: skip
    """Connect each control with its function: the maps are answered at once, the curves after them.

    A click also moves the point, a sample changes the image, a choice of models changes the ends of the sliders.
    """
    image, models, down, across, layer, head, part, size = inputs

    @running.counted
    def show(*values: Any) -> list[Any]:
        return answer(model_cache, PageState(*values))

    @running.counted
    def draw(*values: Any) -> list[Any]:
        return curves(model_cache, PageState(*values))

    @running.counted
    def click(event: gr.SelectData, *values: Any) -> list[Any]:
        state = PageState(*values)
        width, height = displayed_size(state.image)
        x, y = event.index
        point = (round(min(1.0, max(0.0, y / height)), 2), round(min(1.0, max(0.0, x / width)), 2))
        return [*point, *answer(model_cache, state._replace(down=point[0], across=point[1]))]

    @running.counted
    def choose(*values: Any) -> list[Any]:
        state = PageState(*values)
        answered = answer(model_cache, state)
        opened, _ = read_image(state.image)
        ends = [heads_and_layers(label, model_cache.take(label), opened) for label in state.models[:MODELS]]
        heads, layers = (max(end) for end in zip(*ends, strict=True))
        bounds = [
            gr.update(maximum=layers, value=min(state.layer, layers)), gr.update(maximum=heads, value=min(state.head, heads))
        ]  # fmt: skip
        return [*bounds, *answered]

    order: dict[str, Any] = {"concurrency_id": "looks", "concurrency_limit": 1}  # no answer is overtaken by an older one
    quick: dict[str, Any] = {"show_progress": "minimal", "trigger_mode": "always_last", **order}
    later: dict[str, Any] = {"show_progress": "hidden", **order}
    for control in (layer, head, part, size, down, across):
        control.input(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    image.select(click, inputs, [down, across, *maps], **quick).success(draw, inputs, drawn, **later)
    image.upload(lambda: None, None, samples).then(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    picked = samples.input(sample_image, samples, image, **quick)
    picked.then(show, inputs, maps, **quick).success(draw, inputs, drawn, **later)
    models.change(choose, inputs, [layer, head, *maps], **quick).success(draw, inputs, drawn, **later)
    page.load(choose, inputs, [layer, head, *maps], show_progress="minimal", **order).success(draw, inputs, drawn, **later)
