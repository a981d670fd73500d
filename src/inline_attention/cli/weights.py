"""`inline weights`: the authors' files of weights: which are here, fetch, verify, convert and remove them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from .arguments import prepare_folder
from .console import table_console


@dataclass(frozen=True)
class Weights:
    """The authors' published weights: show which are here; fetch, verify, convert or remove those of the named models."""

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Models whose file is downloaded unless it is here; patterns such as 'inline_swin_*' work. None: show what is here."""
    verify: bool = False
    """Compare the files here with the sha256 of when they were downloaded, and check that they are of their models."""
    convert: Path | None = None
    """Write each as safetensors into this folder, which INLINE_WEIGHTS can then name."""
    remove: bool = False
    """Delete the files from the cache instead of downloading them."""
    json: bool = False
    """Print JSON instead of the table."""

    def run(self) -> None:
        """Do what was asked for, then print which files are here."""
        from ..models.published_weights import fetch_weights, find_weights

        names = self._names()
        if self.remove and (self.verify or self.convert):
            raise ValueError("--remove deletes files: leave out --verify and --convert")
        if self.remove and not self.models:
            raise ValueError("--remove needs the models whose files are deleted; '*' is all of them")
        for name in names if self.models and not self.remove else ():
            fetch_weights(name)
        if self.remove:
            for name in names:
                _remove(name)
        here = [name for name in names if find_weights(name)]
        if self.verify:
            for name in here:
                _verify(name)
        if self.convert is not None:
            prepare_folder(self.convert)
            for name in here:
                _convert(name, self.convert)
        self._print([_facts(name) for name in names])

    def _names(self) -> list[str]:
        from fnmatch import fnmatch

        from ..models.published_weights import FILES
        from ..training.config import nearest

        for pattern in self.models:
            if not any(fnmatch(name, pattern) for name in FILES):
                close = nearest(pattern, FILES)
                raise ValueError(f"no published weights are named {pattern!r}{close}; there are: {', '.join(FILES)}")
        return [name for name in FILES if not self.models or any(fnmatch(name, pattern) for pattern in self.models)]

    def _print(self, records: list[dict[str, Any]]) -> None:
        from ..models.published_weights import NO_LICENCE

        if self.json:
            print(json.dumps({"models": records}, indent=1))
            return
        table = Table(box=SIMPLE_HEAD, padding=(0, 1))
        for column in ("model", "MB", "sha256", "file"):
            table.add_column(column, justify="right" if column == "MB" else "left", no_wrap=column != "file")
        for record in records:
            size, digest, path = record["bytes"], record["sha256"], record["file"]
            row = (f"{size / 1e6:.0f}", (digest or "-")[:12], path) if path else ("-", "-", "not here")
            table.add_row(record["model"], *row)
        console = table_console()
        console.print(table)
        lines = ["Fetch: inline weights MODEL. They are also fetched when a model is made with pretrained=True.", NO_LICENCE]
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)


def _facts(name: str) -> dict[str, Any]:
    from ..models.download import recorded_hash
    from ..models.published_weights import find_weights, published_url

    path = find_weights(name)
    return {
        "model": name,
        "url": published_url(name),
        "file": str(path) if path else None,
        "bytes": path.stat().st_size if path else None,
        "sha256": recorded_hash(path) if path else None,
    }


def _remove(name: str) -> None:
    """Delete the model's file, or an unfinished download, from the cache. Its sha256 stays, for the next one."""
    from ..models.download import part_path
    from ..models.published_weights import cached_path, published_url

    path = cached_path(name, published_url(name))
    for file in (path, part_path(path)):
        file.unlink(missing_ok=True)


def _verify(name: str) -> None:
    from ..models.download import changed
    from ..models.published_weights import check_file, find_weights

    path = find_weights(name)
    if path is None:
        return
    if message := changed(path):
        raise ValueError(f"{message}; delete it, and inline weights {name} fetches it again")
    check_file(path, name, str(path))


def _convert(name: str, folder: Path) -> None:
    """Write the weights that `pretrained=True` loads as safetensors, by this package's names."""
    import torch
    from timm.models import create_model

    from ..models.published_weights import load_published
    from ..training.checkpoint import to_bytes, write_atomically

    with torch.device("meta"):
        model = create_model(name)
    model = model.to_empty(device="cpu")
    load_published(model, name)
    write_atomically(folder / f"{name}.safetensors", to_bytes(model.state_dict(), {"model": name, "arguments": {}}))
