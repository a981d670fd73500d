"""The models that the page can show: runs that it was started with, and registered names. Loaded when first asked for."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import torch
from timm.models import is_model, list_models
from torch import nn

from ..training.create import make_model
from ..training.recipe import nearest
from ..training.trained import Trained, load_trained, make_named

OURS = ("inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano", "inline_deit_tiny")
OTHERS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch16_224")
KEPT = 8
"""Models held in memory."""
LARGEST = 120_000_000
"""Parameters of the largest model that the page makes."""


class Shelf:
    """Models by the label that the page shows.

    Args:
        runs: folders of runs, files of weights, or names; only these and registered names can be asked for, never a path that
            someone types into the page.
        pretrained: let timm fetch the weights of models that are named.
        seed: of the weights of models that are not trained.
    """

    def __init__(self, runs: Sequence[str] = (), *, pretrained: bool = False, seed: int = 0) -> None:
        files = [run for run in runs if Path(run).exists()]
        self.names = [run for run in runs if run not in files]
        for name in self.names:
            self._check(name)
        labels = [Path(run).name if [Path(other).name for other in files].count(Path(run).name) == 1 else run for run in files]
        self.runs = dict(zip(labels, files, strict=True))
        self.pretrained, self.seed = pretrained, seed
        self._held: OrderedDict[str, Trained] = OrderedDict()
        self._lock = Lock()
        for label in self.runs:  # a file that cannot be read is told at the start
            self.take(label)

    def choices(self) -> list[str]:
        """What the page offers: its runs first."""
        return list(dict.fromkeys((*self.runs, *self.names, *OURS, *OTHERS)))

    def first(self) -> list[str]:
        """What the page opens with."""
        return ([*self.runs, *self.names] or ["inline_deit_nano", "deit_tiny_patch16_224"])[:4]

    def take(self, label: str) -> Trained:
        """The model of that label, loaded or made."""
        with self._lock:
            if label in self._held:
                self._held.move_to_end(label)
                return self._held[label]
            found = load_trained(self.runs[label]) if label in self.runs else self._make(label)
            self._held[label] = found
            while len(self._held) > KEPT + len(self.runs):
                self._held.popitem(last=False)
            return found

    def _make(self, name: str) -> Trained:
        self._check(name)
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in make_model(name, {}).parameters())
        if size > LARGEST:
            raise ValueError(f"{name} has {size / 1e6:.0f} million parameters, and the page makes at most {LARGEST / 1e6:.0f}")
        return make_named(name, pretrained=self.pretrained, seed=self.seed)

    @staticmethod
    def _check(name: str) -> None:
        if not is_model(name):
            raise ValueError(f"{name} is neither a run of this page nor a model of timm's{nearest(name, list_models())}")


def device_of(model: nn.Module) -> torch.device:
    """Where its weights are."""
    return next(model.parameters()).device
