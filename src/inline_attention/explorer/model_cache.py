"""The models of the page: runs that it was started with, and models by name. They are loaded when first used."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

import torch
from timm.models import is_model, list_models
from torch import nn

from ..analysis.sample_images import SAMPLES
from ..training.config import nearest
from ..training.load_trained import Trained, load_trained, make_named
from ..training.model_factory import make_model

TRAINED = ("inline_deit_nano.digits", "inline_swin_nano.digits")
"""Models of the package that the page opens with: trained, without a download."""
OURS = ("inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano", "inline_deit_tiny")
OTHERS = ("vit_tiny_patch16_224", "deit_tiny_patch16_224", "vit_small_patch16_224")
CACHE_SIZE = 8
"""Models by name that stay in memory."""
LARGEST_MODEL = 120_000_000
"""Parameters of the largest model that the page creates."""


class ModelCache:
    """Models by their label on the page.

    Args:
        runs: folders of runs, files of weights, or names; only these and timm's names can be chosen, never a path that
            someone types into the page.
        pretrained: take the published weights of models that are given by name.
        seed: of the weights of untrained models.
    """

    def __init__(self, runs: Sequence[str] = (), *, pretrained: bool = False, seed: int = 0) -> None:
        files = [run for run in runs if Path(run).exists()]
        self.names = [run for run in runs if run not in files]
        for name in self.names:
            self._check(name)
        labels = [Path(run).name if [Path(other).name for other in files].count(Path(run).name) == 1 else run for run in files]
        self.runs = dict(zip(labels, files, strict=True))
        self.pretrained, self.seed = pretrained, seed
        self._cache: OrderedDict[str, Trained] = OrderedDict()
        self._lock = Lock()
        for label in self.runs:  # a file that cannot be read is an error at the start
            self.take(label)

    def choices(self) -> list[str]:
        """The models that the page offers: its runs first."""
        return list(dict.fromkeys((*self.runs, *self.names, *TRAINED, *OURS, *OTHERS)))

    def first(self) -> list[str]:
        """The models that the page opens with."""
        return ([*self.runs, *self.names] or [*TRAINED])[:4]

    def first_sample(self) -> str:
        """The sample image that the page opens with: one of the kind that its models were trained on."""
        return "digit" if set(self.first()) <= set(TRAINED) else SAMPLES[0]

    def take(self, label: str) -> Trained:
        """The model of that label, loaded or created."""
        with self._lock:
            if label in self._cache:
                self._cache.move_to_end(label)
                return self._cache[label]
            found = load_trained(self.runs[label]) if label in self.runs else self._make(label)
            self._cache[label] = found
            while len(self._cache) > CACHE_SIZE + len(self.runs):
                self._cache.popitem(last=False)
            return found

    def _make(self, name: str) -> Trained:
        self._check(name)
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in make_model(name, {}).parameters())
        if size > LARGEST_MODEL:
            raise ValueError(
                f"{name} has {size / 1e6:.0f} million parameters, and the page makes at most {LARGEST_MODEL / 1e6:.0f}"
            )
        return make_named(name, pretrained=self.pretrained, seed=self.seed)

    @staticmethod
    def _check(name: str) -> None:
        if not is_model(name):
            raise ValueError(f"{name} is neither a run of this page nor a model of timm's{nearest(name, list_models())}")


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's weights."""
    return next(model.parameters()).device
