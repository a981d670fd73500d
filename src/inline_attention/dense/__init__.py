"""Detection and segmentation on the maps of a backbone: models, readers of data, metrics, drawing."""

from .detector import make_detector
from .pyramid import make_pyramid
from .segmenter import Segmenter

__all__ = ["Segmenter", "make_detector", "make_pyramid"]
