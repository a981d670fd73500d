"""Outputs that are not finite (NaN or infinity): which image they are of."""

from collections.abc import Sequence


def check_images(finite: Sequence[bool], names: Sequence[str], model: str, advice: str) -> None:
    """Raise a FloatingPointError that names the first image whose outputs are not finite.

    Args:
        finite: whether all outputs of an image are finite, by image.
        names: of the images; fewer than there are images where they have none.
        model: what gave the outputs.
        advice: what to do.
    """
    if all(finite):
        return
    place = list(finite).index(False)
    name = names[place] if place < len(names) else f"image {place + 1} of {len(finite)}"
    raise FloatingPointError(f"{model} gives numbers that are not finite (NaN or infinity) for {name}: {advice}")
