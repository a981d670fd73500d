"""`inline features`: the features of slides' tiles, from any model, in files that `inline train --labels` takes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from ..lite.text import printable
from .arguments import prepare_folder, usable_device
from .file_batch import explain_failure, list_files, of_shard, parse_shard
from .large_options import LargeOptions
from .main import warn
from .map_records import file_hash
from .progress import BatchProgress

if TYPE_CHECKING:
    import torch

    from ..data.config import DataConfig
    from ..large.tile_features import TileEncoder

Jobs = list[tuple[Path, Path]]


@dataclass(frozen=True)
class Features:
    """Cut slides into tiles, skip background, and write what a model makes of each tile, for `inline train --labels`."""

    images: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Slides and other image files, folders of them, patterns, or '-' for a list on the standard input."""
    model: str
    """Any model of timm's by name, with --pretrained or --weights; a run's folder; or a file of weights."""
    pretrained: bool = False
    """Take the published weights of a model that is given by name."""
    weights: Path | None = None
    """For a model that is given by name: a file of weights; a classifier in it is left out."""
    args: str = ""
    """Further arguments of timm.create_model for --weights, as in TOML: 'init_values=1e-5, dynamic_img_size=true'."""
    out: Path | None = None
    """Folder of the features, or for one image a file that ends in .h5; unset: features/."""
    tile: int | None = None
    """Pixels of a tile's side, at the resolution of --mpp or --level; unset: those of the model's input."""
    tissue: float = 0.25
    """The share of a tile that is tissue, from which on it is taken; by --mask, which is tissue unless it is given."""
    large: Annotated[LargeOptions, tyro.conf.arg(name="")] = field(default_factory=LargeOptions)
    batch: int = 32
    """Tiles at once."""
    shard: str | None = None
    """Which of several machines this is, such as 0/4: each has its own images."""
    skip_bad: bool = False
    """Exit without an error, even if some images failed; they are named."""
    device: str = "cpu"
    """Where the model runs: cpu, cuda, mps."""
    json: bool = False
    """Print one line of JSON for each image."""

    def run(self) -> None:
        """Encode one image after the other. Those that are done already, with the same settings, are not done again."""
        if self.batch < 1 or (self.tile is not None and self.tile < 1):
            raise ValueError(f"--batch and --tile must be positive, got {self.batch} and {self.tile}")
        if not 0 <= self.tissue <= 1:
            raise ValueError(f"--tissue must be within 0..1, got {self.tissue:g}")
        out = self.out or Path("features")
        files = list_files(self.images, out)
        single = out.suffix.lower() in (".h5", ".hdf5")
        if single and len(files) != 1:
            raise ValueError(f"--out {out} is one file, and there are {len(files)} images: give a folder")
        device = usable_device(self.device)
        encoder, about = self._encoder(device)
        jobs = [(file.path, out if single else out / f"{file.result}.h5") for file in of_shard(files, parse_shard(self.shard))]
        prepare_folder(out.parent if single else out)
        failed = self._encode_all(jobs, encoder, about)
        if failed and not self.skip_bad:
            raise ValueError(failed[-1] if len(jobs) == 1 else f"{len(failed)} of {len(jobs)} images failed, named above")

    def _encode_all(self, jobs: Jobs, encoder: "TileEncoder", about: Mapping[str, Any]) -> list[str]:
        """Encode the images, print a line for each, and return the errors of those that failed."""
        from ..large.tile_features import stored_settings

        failed: list[str] = []
        with BatchProgress(len(jobs), Console(stderr=True), "row of tiles") as progress:
            for path, target in jobs:
                if stored_settings(target) == about:
                    progress.skip()
                    self._print({"image": str(path), "features": str(target), "done_before": True})
                    continue
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    facts = self._encode(path, target, encoder, about, progress.begin(printable(path.name)))
                except Exception as error:  # the other images are encoded all the same
                    failed.append(explain_failure(path, error))
                    progress.end()
                    if len(jobs) > 1:
                        warn(failed[-1])
                    continue
                progress.end()
                self._print(facts)
        return failed

    def _encode(
        self, path: Path, target: Path, encoder: "TileEncoder", about: Mapping[str, Any], progress: Any
    ) -> dict[str, Any]:
        from ..large.tile_features import encode_tiles, slide_coords, tile_attributes, write_features

        start = perf_counter()
        tile = int(about["tile"])
        image = replace(self.large, mask="none").open(str(path))  # a tile is seen with what surrounds its tissue
        masked = image if about["mask"] == "none" else replace(self.large, mask=about["mask"]).open(str(path))
        try:
            found = encode_tiles(
                image, encoder, tile, tissue=None if masked is image else masked.has_data, least_tissue=self.tissue,
                batch=self.batch, progress=progress,
            )  # fmt: skip
        finally:
            image.close()
            masked.close()
        finest = image.file.levels[0]
        downsample = finest.height / image.height, finest.width / image.width
        size = None if image.pixel_size is None else image.pixel_size.width
        attributes = tile_attributes(tile, downsample[1], (finest.height, finest.width), size)
        coords = slide_coords(found.places, tile, downsample)
        written = {"encoder": about["model"], "settings": json.dumps(about)}
        write_features(target, found.features.numpy(), coords, {**attributes, "name": path.stem}, written)
        return {
            "image": str(path), "features": str(target), "tiles": len(coords), "all_tiles": found.all_tiles,
            "channels": found.features.shape[1], "seconds": round(perf_counter() - start, 2),
        }  # fmt: skip

    def _print(self, facts: dict[str, Any]) -> None:
        if self.json:
            print(json.dumps(facts), flush=True)
        elif "done_before" in facts:
            print(printable(f"{facts['image']} -> {facts['features']}: done before"))
        else:
            tiles = f"{facts['tiles']:,} of {facts['all_tiles']:,} tiles have tissue, {facts['channels']:,} channels"
            print(printable(f"{facts['image']} -> {facts['features']}: {tiles}, {facts['seconds']:g} s"))

    def _encoder(self, device: "torch.device") -> "tuple[TileEncoder, dict[str, Any]]":
        """The model, and all that decides the features, which their files record."""
        from ..data.transforms import normalisation
        from ..large.tile_features import TileEncoder

        model, data, source = self._load()
        mean, std = normalisation(data)
        options = {name: getattr(self.large, name) for name in ("level", "mpp", "channels", "value_range")}
        about = {
            "model": source, "args": self.args, "size": list(data.size), "tile": self.tile or max(data.size), **options,
            "mask": self.large.mask or "tissue", "tissue": self.tissue,
        }  # fmt: skip
        return TileEncoder(model.eval().to(device), data.size, mean, std, device), about

    def _load(self) -> "tuple[torch.nn.Module, DataConfig, str]":
        """The model, its input, and what to call it: its name, with a hash of its weights if they are in a file."""
        from ..training.config import ModelConfig
        from ..training.load_trained import input_of, load_trained, metadata_of
        from ..training.model_factory import load_weights, make_model, weights_path
        from ..training.recipe import model_arguments

        own = Path(self.model).exists()
        if self.args and (own or self.weights is None):
            raise ValueError(f"--args {self.args!r} is for a model that is named, with --weights: leave it out")
        if own or self.weights is None or metadata_of(weights_path(self.weights, self.model)):
            trained = load_trained(self.model, self.weights, pretrained=self.pretrained)
            path = weights_path(self.model) if own else self.weights
            return trained.model, trained.data, self._called(trained.name, path)
        given = model_arguments(ModelConfig(self.model, args=self.args))
        model = make_model(self.model, {"num_classes": 0, **given})
        path = weights_path(self.weights, self.model)
        load_weights(model, path, headless=True)
        return model, input_of(model), self._called(self.model, path)

    def _called(self, name: str, path: Path | None) -> str:
        return name if path is None or not path.is_file() else f"{name} {file_hash(path)}"
