"""mIoU, mAcc and aAcc: how well predicted label maps agree with the truth, over all images together."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypedDict

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from ..data.label_maps import IGNORED


class SegmentationScores(TypedDict):
    """All in percent."""

    miou: float
    """Mean of `iou` over the classes that have one."""
    macc: float
    """Mean accuracy of the classes that occur in the truth: the share of their pixels that is predicted right."""
    aacc: float
    """Share of all pixels that are predicted right."""
    iou: list[float | None]
    """Intersection over union of each class; None for a class that is neither in the truth nor predicted."""


class MeanIoU:
    """Counts pixels by true and predicted class, over any number of images of any size and over all processes.

    Pixels are summed over all images before anything is divided, as in mmsegmentation. Pixels whose truth is 255 are ignored.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu") -> None:
        self.classes = classes
        device = "cpu" if torch.device(device).type == "mps" else device  # see `_torch_bincount`
        # torchmetrics' own validation calls torch.unique on every image, which is slow; `update` compares the extremes instead.
        self.confusion = MulticlassConfusionMatrix(classes, ignore_index=IGNORED, validate_args=False).to(device)

    def update(self, labels: Tensor, truth: Tensor) -> None:
        """Count one image.

        Args:
            labels: (H, W), predicted classes.
            truth: (H, W), true classes, or 255.
        """
        if labels.shape != truth.shape:
            raise ValueError(
                f"predicted labels are {tuple(labels.shape)} and the truth is {tuple(truth.shape)}: sizes must agree"
            )
        device = self.confusion.device
        labels, truth = labels.to(device), truth.to(device)
        counted = truth != IGNORED
        for what, values in (("the truth", truth[counted]), ("the prediction", labels[counted])):
            if len(values) and not (int(values.min()) >= 0 and int(values.max()) < self.classes):
                wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
                raise ValueError(f"{what} has a class {wrong}: classes are 0 to {self.classes - 1}, and {IGNORED} for ignored")
        with _torch_bincount():
            self.confusion.update(labels, truth)

    def confusion_matrix(self) -> Tensor:
        """(classes, classes) int64, pixels by true class (row) and predicted class (column), summed over all processes."""
        with warnings.catch_warnings():  # of a process that counted no image itself
            warnings.filterwarnings("ignore", "The ``compute`` method", UserWarning)
            return self.confusion.compute()

    def compute(self) -> SegmentationScores:
        """Scores of all images. All processes must call it.

        A class that is neither in the truth nor predicted is left out of mIoU; one that is predicted but not in the truth
        counts as an IoU of 0. Classes that are not in the truth are left out of mAcc, predicted or not.
        """
        # The matrix is divided here, in float64: torchmetrics' Jaccard index divides in float32, which is not exact beyond
        # 16.7 million pixels.
        counts = self.confusion_matrix().cpu().double()
        both, truth, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        if not truth.sum():
            raise ValueError("there is no pixel to score: no image was counted, or all of the truth is ignored")
        iou = 100 * both / (truth + predicted - both)  # 0 / 0 is nan
        return {
            "miou": float(iou.nanmean()),
            "macc": float((100 * both / truth).nanmean()),
            "aacc": float(100 * both.sum() / truth.sum()),
            "iou": [None if share != share else share for share in iou.tolist()],
        }


@contextmanager
def _torch_bincount() -> Iterator[None]:
    """Have torchmetrics count by `torch.bincount`.

    In deterministic mode (and on MPS) it counts in another way, whose memory is pixels x classes^2: 60 GB for an image and 150
    classes. To count integers is deterministic anyway.
    """
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
