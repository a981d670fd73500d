"""How large the area of each class is: in pixels, and on the slide or on the ground."""

from typing import Any, NamedTuple

from .segmented_map import SegmentedMap

LARGER_UNIT = {"µm": ("mm²", 1e6), "m": ("ha", 1e4)}
"""Units of area for what people measure, and how many square micrometres or metres they have."""


class ClassArea(NamedTuple):
    """The area of one class."""

    name: str
    pixels: int
    share: float
    """Of the valid pixels."""
    area: float | None
    """In square micrometres or metres; None if the size of a pixel is not known."""


def class_areas(found: SegmentedMap) -> list[ClassArea]:
    """The area of each class, in the order of the classes."""
    valid, size = max(1, sum(found.counts)), found.place.pixel_size
    pixel = None if size is None else size.height * size.width
    return [
        ClassArea(name, count, count / valid, None if pixel is None else count * pixel)
        for name, count in zip(found.classes, found.counts, strict=True)
    ]


def area_record(found: SegmentedMap) -> dict[str, Any]:
    """The areas for a JSON file, with the units in the keys: um2 and mm2, or m2 and ha."""
    unit = None if found.place.pixel_size is None else found.place.pixel_size.unit
    entries: list[dict[str, Any]] = []
    for name, pixels, share, area in class_areas(found):
        entry: dict[str, Any] = {"name": name, "pixels": pixels, "share": share}
        if unit is not None and area is not None:
            larger, factor = LARGER_UNIT[unit]
            entry |= {f"{unit.replace('µ', 'u')}2": area, larger.replace("²", "2"): area / factor}
        entries.append(entry)
    height, width = found.size
    return {"classes": entries, "pixels": height * width, "invalid_pixels": height * width - sum(found.counts)}
