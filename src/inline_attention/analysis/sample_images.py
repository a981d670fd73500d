"""Sample images that come with installed packages: three of scikit-learn's, one of matplotlib's."""

import numpy as np
from PIL import Image

from ..lite.decode import open_pillow

PHOTOS = ("flower", "temple", "portrait")
SAMPLES = (*PHOTOS, "digit")


def sample_image(name: str) -> Image.Image:
    """The sample image of this name, in RGB."""
    if name == "portrait":
        from matplotlib.cbook import get_sample_data

        with open_pillow(str(get_sample_data("grace_hopper.jpg", asfileobj=False))) as image:
            return image.convert("RGB")
    if name == "digit":
        from sklearn.datasets import load_digits

        small = Image.fromarray((load_digits().images[DIGIT] * (255 / 16)).astype(np.uint8))
        return small.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC).convert("RGB")
    files = {"flower": "flower.jpg", "temple": "china.jpg"}
    if name not in files:
        raise ValueError(f"unknown sample {name!r}; there are: {', '.join(SAMPLES)}")
    from sklearn.datasets import load_sample_image

    return Image.fromarray(load_sample_image(files[name]))


DIGIT = 8
"""Which of the scanned digits is a sample: an eight."""
DIGIT_SIDE = 320
"""It has 8 x 8 pixels, too few to be clicked at, and is shown larger."""
