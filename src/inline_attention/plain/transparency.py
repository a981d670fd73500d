"""Pictures that one can see through."""

from PIL import Image


def on_white(image: Image.Image) -> Image.Image:
    """Transparency laid on white; other pictures as they are."""
    if image.mode not in ("LA", "PA", "RGBA", "La", "RGBa") and "transparency" not in image.info:
        return image
    layer = image.convert("RGBA")
    white = Image.new("RGBA", layer.size, "white")
    white.alpha_composite(layer)
    return white
