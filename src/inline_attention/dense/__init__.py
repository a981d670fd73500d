"""L3: detectors and segmenters on the feature maps of a backbone, their metrics and drawings."""

from .detector import make_detector
from .pyramid import make_pyramid
from .segmenter import Segmenter

__all__ = ["Segmenter", "make_detector", "make_pyramid"]
