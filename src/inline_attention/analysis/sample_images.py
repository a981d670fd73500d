"""Sample images that come with installed packages: two of scikit-learn's, one of matplotlib's."""

from PIL import Image

from ..lite.decode import open_pillow

SAMPLES = ("flower", "temple", "portrait")


def sample_image(name: str) -> Image.Image:
    """The sample image of this name, in RGB."""
    if name == "portrait":
        from matplotlib.cbook import get_sample_data

        with open_pillow(str(get_sample_data("grace_hopper.jpg", asfileobj=False))) as image:
            return image.convert("RGB")
    files = {"flower": "flower.jpg", "temple": "china.jpg"}
    if name not in files:
        raise ValueError(f"unknown sample {name!r}; there are: {', '.join(SAMPLES)}")
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(files[name]))
