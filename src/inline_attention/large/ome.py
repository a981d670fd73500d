"""What the metadata of an OME-TIFF says of its first image: the names of its channels, and the size of a pixel."""

from typing import NamedTuple
from xml.etree import ElementTree

from .image_file import PixelSize

IN_MICROMETRES = {"m": 1e6, "dm": 1e5, "cm": 1e4, "mm": 1e3, "µm": 1.0, "μm": 1.0, "um": 1.0, "nm": 1e-3, "Å": 1e-4, "pm": 1e-6}
"""Units of length. Both letters mu of Unicode are in use."""


class OmeFacts(NamedTuple):
    """Facts of an image."""

    channels: tuple[str, ...]
    """A channel without a name has its number."""
    pixel_size: PixelSize | None


def ome_facts(text: str) -> OmeFacts | None:
    """Read OME's XML; None if it describes no image."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"its OME metadata is no XML: {error}") from error
    pixels = root.find("{*}Image/{*}Pixels")
    if pixels is None:
        return None
    names: list[str] = []
    for channel in pixels.iterfind("{*}Channel"):
        samples = int(channel.get("SamplesPerPixel", "1"))
        name = channel.get("Name") or channel.get("Fluor")
        names += [name] if name and samples == 1 else [str(len(names) + number) for number in range(samples)]
    sides = [_micrometres(pixels, axis) for axis in "YX"]
    height, width = sides
    return OmeFacts(tuple(names), PixelSize(height, width, "µm") if height and width else None)


def _micrometres(pixels: ElementTree.Element, axis: str) -> float | None:
    size, unit = pixels.get(f"PhysicalSize{axis}"), pixels.get(f"PhysicalSize{axis}Unit", "µm")
    if size is None or unit not in IN_MICROMETRES:
        return None
    number = float(size) * IN_MICROMETRES[unit]
    return number if 0 < number < 1e9 else None
