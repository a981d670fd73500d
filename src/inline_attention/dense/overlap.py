"""How well label maps agree with the truth: mIoU, mAcc and aAcc, over all pictures together."""

from typing import TypedDict

import torch
from torch import Tensor

IGNORED = 255
"""Truth that is not asked for."""


class Overlap(TypedDict):
    """Shares in percent."""

    miou: float
    """Mean of `iou` over the classes that have one."""
    macc: float
    """Mean, over the classes that occur in the truth, of the share of their pixels that was found."""
    aacc: float
    """Share of all pixels that are right."""
    iou: list[float | None]
    """By class: pixels in both over pixels in either; None for a class that is neither in the truth nor predicted."""


class OverlapMeter:
    """Counts pixels by class, over any number of pictures of any size.

    Pixels are summed over all pictures before anything is divided, as mmsegmentation does. What is predicted where the truth is
    255 counts for nothing.

    Attributes:
        counts: (classes, classes) int64, pixels by true class (row) and predicted class (column). Sum it over processes before
            `result`.
    """

    def __init__(self, classes: int, device: torch.device | str = "cpu") -> None:
        self.classes = classes
        self.counts = torch.zeros(classes, classes, dtype=torch.int64, device=device)

    def add(self, labels: Tensor, truth: Tensor) -> None:
        """Count one picture.

        Args:
            labels: (H, W), predicted classes.
            truth: (H, W), true classes, or 255.
        """
        if labels.shape != truth.shape:
            raise ValueError(
                f"predicted labels are {tuple(labels.shape)} and the truth is {tuple(truth.shape)}: sizes must agree"
            )
        asked = truth != IGNORED
        rows, columns = truth[asked].long(), labels[asked].long().to(truth.device)
        for what, values in (("the truth", rows), ("the prediction", columns)):
            if len(values) and not (int(values.min()) >= 0 and int(values.max()) < self.classes):
                strange = int(values.min()) if int(values.min()) < 0 else int(values.max())
                raise ValueError(
                    f"{what} has a class {strange}: classes are 0 to {self.classes - 1}, and {IGNORED} for ignored"
                )
        pairs = torch.bincount(rows * self.classes + columns, minlength=self.classes**2)
        self.counts += pairs.view(self.classes, self.classes).to(self.counts.device)

    def result(self) -> Overlap:
        """Scores of all that was counted.

        A class that is neither in the truth nor predicted is left out of mIoU; one that is predicted but not in the truth
        counts as an IoU of 0. Classes that are not in the truth are left out of mAcc, predicted or not.
        """
        counts = self.counts.cpu().double()
        both, truth, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
        if not truth.sum():
            raise ValueError("there is no pixel to score: no picture was counted, or all of the truth is ignored")
        iou = 100 * both / (truth + predicted - both)  # 0 / 0 is nan
        return {
            "miou": float(iou.nanmean()),
            "macc": float((100 * both / truth).nanmean()),
            "aacc": float(100 * both.sum() / truth.sum()),
            "iou": [None if share != share else share for share in iou.tolist()],
        }
