"""The authors' files of weights: where they are, the folder and the cache that are looked at first, loading one.

The server's addresses have neither a file name nor a hash. So a file gets a name of its own in the cache, and only after its
content has been checked. Nothing in a file is run (`load_official`). The authors' repository has no licence, so that this
package contains none of their files.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from timm.models import split_model_name_tag
from torch import Tensor, nn

from .adapt_weights import LoadReport
from .download import download_once
from .load_official import EMA, load_official, read_checkpoint, select_weights
from .packaged_weights import packaged_path, tags_of

SERVER = "https://cloud.tsinghua.edu.cn/f/{}/?dl=1"
FILES = {
    "inline_deit_tiny": "1d6b8191ad6d4114b291",
    "inline_deit_small": "2f3898b07e9247f3beb3",
    "inline_deit_base": "10bdd726d4b0435eb34e",
    "inline_pvt_tiny": "90ac52b1555b401eb5e6",
    "inline_pvt_small": "1ab953b2479d433080a3",
    "inline_pvt_medium": "a72aec31e6084bc0a280",
    "inline_pvt_large": "efd91318ba964f01b288",
    "inline_swin_tiny": "32810869fcc34410966b",
    "inline_swin_small": "e9657fd247c04c7cb1a1",
    "inline_swin_base": "bf23564bb64c420aafe1",
    "inline_cswin_tiny": "49fa2ecc543647c4b970",
    "inline_cswin_small": "59f4e65f776f4052b93c",
    "inline_cswin_base": "91e17121df284ae38521",
}
"""The thirteen models with a published file, and the server's name for it."""
TAG = "in1k"
"""timm's word for weights that were trained on ImageNet-1K."""
FOLDER = "INLINE_WEIGHTS"
"""The environment variable with a folder of files, for machines without internet."""
NO_LICENCE = "The authors' repository has no licence: ask them before you use their weights in a product."

_log = logging.getLogger("inline_attention")


def published_url(name: str) -> str:
    """The address of a model's published file."""
    return SERVER.format(FILES[name])


def load_published(
    model: nn.Module, name: str, weights: str | Path | None = None, cache_dir: str | Path | None = None
) -> LoadReport:
    """Load a model's published weights into a model of any size.

    Args:
        model: one of the package's backbones, or a module that holds one.
        name: of the model, perhaps with a tag.
        weights: a file; or an address, in place of the authors' server, which is asked if neither the folder of
            `INLINE_WEIGHTS` nor the cache has the file.
        cache_dir: instead of torch's cache.
    """
    path = weights if isinstance(weights, Path) else fetch_weights(name, weights, cache_dir)
    report = load_official(model, read_published(path, name), source=str(path))
    _log.log(logging.WARNING if report.resized or report.kept else logging.INFO, "%s: %s", path, report)
    return report


def read_published(path: Path, name: str) -> dict[str, Tensor]:
    """The weights in a file: of CSwin the moving average, by which the authors evaluate it."""
    checkpoint = read_checkpoint(path)
    ema = "cswin" in name and any(key in checkpoint for key in EMA)
    if "cswin" in name and not ema and path.suffix == ".pth":
        _log.warning("%s holds no moving average: its plain weights are loaded", path)
    return select_weights(checkpoint, ema=ema, source=str(path))


def fetch_weights(name: str, url: str | None = None, cache_dir: str | Path | None = None) -> Path:
    """The model's file, downloaded if it is neither in the package, nor in the folder of `INLINE_WEIGHTS`, nor in the cache.

    Args:
        name: of the model, perhaps with a tag.
        url: where it is; the authors' server by default.
        cache_dir: instead of torch's cache.
    """
    if url is None and (found := packaged_path(name)):
        return found
    name = split_model_name_tag(name)[0]
    if url is None and name not in FILES:
        raise ValueError(f"{name} has no published weights{by_tag(name)}")
    url = published_url(name) if url is None else url
    if found := in_folder(name):
        return found
    path = cached_path(name, url, cache_dir)
    advice = (
        f"Put the file into a folder as {name}.pth and set {FOLDER} to that folder, or give it by checkpoint_path= "
        "(to a command by --weights)"
    )
    try:
        download_once(url, path, name, lambda file: check_file(file, name, url))
    except ValueError as error:
        raise ValueError(f"{error}. {advice}") from error
    except OSError as error:
        raise ConnectionError(f"the weights of {name} cannot be downloaded from {url}: {error}. {advice}") from error
    return path


def by_tag(name: str) -> str:
    """', but MODEL.TAG has', for a model with weights in the package; else nothing."""
    tags = tags_of(name)
    return f", but {' and '.join(tags)} ha{'ve' if len(tags) > 1 else 's'}" if tags else ""


def find_weights(name: str, url: str | None = None, cache_dir: str | Path | None = None) -> Path | None:
    """The model's file, if it is in the folder of `INLINE_WEIGHTS` or in the cache."""
    cached = cached_path(name, published_url(name) if url is None else url, cache_dir)
    return in_folder(name) or (cached if cached.is_file() else None)


def in_folder(name: str, folder: str | Path | None = None) -> Path | None:
    """The model's file in a folder, by default that of `INLINE_WEIGHTS`: inline_swin_tiny.pth, or as the authors say, _t."""
    folder = folder or os.environ.get(FOLDER)
    if not folder:
        return None
    name = split_model_name_tag(name)[0]
    if not Path(folder).is_dir():
        raise ValueError(f"{FOLDER}: there is no folder {folder}")
    return next((path for path in _possible_files(name, Path(folder)) if path.is_file()), None)


def _possible_files(name: str, folder: Path) -> Iterator[Path]:
    short = re.sub(r"_(tiny|small|medium|base|large)", lambda size: f"_{size[1][0]}", name)
    for suffix in (".safetensors", ".pth"):
        for stem in (name, f"{name}.{TAG}", short):
            yield folder / f"{stem}{suffix}"


def cached_path(name: str, url: str, cache_dir: str | Path | None = None) -> Path:
    """Where the file of this address is kept: in torch's cache, or in `cache_dir`."""
    folder = Path(torch.hub.get_dir()) / "checkpoints" if cache_dir is None else Path(cache_dir)
    other = "" if name in FILES and url == published_url(name) else f"-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
    return folder / f"{name}.{TAG}{other}.pth"


def check_file(path: Path, name: str, source: str) -> None:
    """Raise, in one line, unless the file holds weights of this model."""
    from .published_models import identify, model_shapes, shapes_of

    with path.open("rb") as file:
        start = file.read(64).lstrip().lower()
    if start.startswith((b"<", b"{")):
        raise ValueError(f"{source} answers with a web page instead of the weights of {name}")
    try:
        state = select_weights(read_checkpoint(path), ema=False, source=source)
    except ValueError as error:
        raise ValueError(str(error).replace(str(path), source)) from error
    if shapes_of(state) != model_shapes(name):
        others = ", ".join(dict.fromkeys(found for found, _ in identify(state))) or "no model of this package"
        raise ValueError(f"{source} holds weights of {others}, not of {name}")
