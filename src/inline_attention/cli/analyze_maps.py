"""`inline analyze maps`: what one point of an image attends to, in every layer; also of an image that is larger than memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.table import Table

from .analyze_base import Analysis, check_point, make_table, spread, warn_left_out
from .analyze_inputs import choose_image, to_draw, whole_image
from .large_options import LargeOptions

if TYPE_CHECKING:
    from ..analysis.maps import QueryMap


@dataclass(frozen=True)
class AnalyzeMaps(Analysis):
    """Draw the attention of one point of an image: by layer, global and local part, by head, and through all layers."""

    image: str | None = None
    """A file, or a sample: flower, temple, portrait; unset: the first of the images."""
    point: tuple[float, float] = (0.5, 0.5)
    """Position of the query, as shares of height and width."""
    layers: tuple[int, ...] = ()
    """Which layers to draw, counted from 1; unset: five, evenly spread."""
    head: int | None = None
    """One head, counted from 1; unset: the mean."""
    stream: bool = False
    """Take the file of --image at its own size, however large, in bands: slides, maps, and segmenters too; without rollout."""
    large: Annotated[LargeOptions, tyro.conf.arg(name="")] = field(default_factory=LargeOptions)
    folder: Path | None = None
    """Folder for the temporary files of --stream; unset: the system's."""

    def run(self) -> None:
        """Capture attention, draw, print."""
        if self.stream:
            self.large.check()
            self._stream()
            return
        self.large.refuse_without("--stream")
        self._capture()

    def _stream(self) -> None:
        """The same for an image that is larger than memory: the global parts."""
        from ..analysis.map_plots import draw_global, draw_heads
        from .analyze_large import image_to_draw, point_maps

        point, pixels = check_point(self.point), image_to_draw(self)
        numbers, tables, files = {}, [], []
        for label, every in point_maps(self, point):
            chosen = self._chosen(len(every))
            maps = [every[place] for place in chosen]
            self._check_head(maps, label)
            numbers[label] = {"point": point, "layers": list(map(_map_numbers, maps))}
            maps = [replace(found, local=None) for found in maps]
            tables.append(_map_table(label, chosen, maps))
            name = _file_name(label)
            files.append(draw_global(pixels, maps, label, self.out / f"maps-{name}.png", self.head and self.head - 1))
            files.append(draw_heads(maps, label, self.out / f"heads-{name}.png"))
        summary = (
            f"The query at {point[0]:g} of the height and {point[1]:g} of the width of {self.image}, and its global weights "
            "over the whole image; the local part is in the JSON file. A place has the mean of its tokens."
        )
        self.write("maps", {"models": numbers, "image": self.image}, tables, files, summary)

    def _capture(self) -> None:
        from ..analysis.capture import capture_pass
        from ..analysis.map_plots import draw_heads, draw_models, draw_parts
        from ..analysis.maps import one_grid, query_map, rollout

        models, images = self.begin()
        image, source = choose_image(self.image, images)
        point = check_point(self.point)
        maps, rollouts, numbers, tables, files = {}, {}, {}, [], []
        for one in models:
            label = one.subject.label
            seen = capture_pass(one.subject.model, whole_image(one, image))
            chosen = self._chosen(len(seen))
            maps[label] = [query_map(seen[place], seen[place].place(point)) for place in chosen]
            self._check_head(maps[label], label)
            stage = one_grid(seen.layers)
            rollouts[label] = rollout(stage, stage[-1].place(point))[0]
            numbers[label] = {
                "point": point,
                "layers": list(map(_map_numbers, maps[label])),
                "rollout": {"layers": [layer.name for layer in stage], "weights": rollouts[label].tolist()},
            }
            warn_left_out(label, seen)
            tables.append(_map_table(label, chosen, maps[label]))
            name, pixels = _file_name(label), to_draw(image)
            files.append(draw_parts(pixels, maps[label], label, self.out / f"maps-{name}.png", self.head and self.head - 1))
            files.append(draw_heads(maps[label], label, self.out / f"heads-{name}.png"))
        files.insert(0, draw_models(to_draw(image), maps, rollouts, self.out / "maps.png"))
        summary = (
            f"The query at {point[0]:g} of the height and {point[1]:g} of the width of {source}; its strongest weight, for or "
            "against, and the share of negative weights, with the local part."
        )
        self.write("maps", {"models": numbers, "image": source}, tables, files, summary)

    def _chosen(self, layers: int) -> list[int]:
        if self.layers:
            wrong = [number for number in self.layers if not 1 <= number <= layers]
            if wrong:
                raise ValueError(f"--layers {wrong[0]}: the model has {layers} layers, counted from 1")
            return [number - 1 for number in self.layers]
        return spread(layers)

    def _check_head(self, maps: Sequence[Any], label: str) -> None:
        heads = min(found.mixed.shape[1] for found in maps)
        if self.head is not None and not 1 <= self.head <= heads:
            raise ValueError(f"--head {self.head}: {label} has {heads} heads in a layer that is drawn, counted from 1")


def _map_numbers(found: "QueryMap") -> dict[str, Any]:
    return {
        "layer": found.layer, "query": found.query, "grid": found.grid, "tokens": found.tokens or found.grid,
        "span": found.span,
        "global": found.mixed[0].tolist(),
        "local": None if found.local is None else found.local[0].tolist(), "prefix": found.prefix[0].tolist(),
    }  # fmt: skip


def _map_table(label: str, chosen: Sequence[int], maps: Sequence["QueryMap"]) -> Table:
    """A row for each chosen layer: its strongest weight and where it is."""
    from ..analysis.attention import layer_label

    table = make_table("layer", "tokens", "strongest, even shares", "row, column", "negative, %", title=label)
    for number, found in zip(chosen, maps, strict=True):
        weights = found.together[0].mean(0) * found.mixed[0, 0].numel()
        place = int(weights.abs().argmax())
        where = f"{place // weights.shape[1] + 1}, {place % weights.shape[1] + 1}"
        negative = 100 * float((found.together[0] < 0).double().mean())
        strongest = f"{float(weights.flatten()[place]):.3g}"
        table.add_row(f"{number + 1}: {layer_label(found.layer)}", found.size, strongest, where, f"{negative:.0f}")
    return table


def _file_name(label: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in label).strip("-")
