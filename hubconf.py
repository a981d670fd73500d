"""Entry points of `torch.hub.load`: one for each model of the package, by its name in timm's registry.

The package need not be installed; torch, timm and the other `dependencies` must be.
"""

import importlib.util
import pathlib
import sys
import typing

dependencies = ["torch", "timm", "safetensors", "typing_extensions", "filelock", "tqdm"]


def _import_package() -> None:
    """Import the package from this folder, unless it is imported already."""
    source = str(pathlib.Path(__file__).resolve().parent / "src")
    sys.path.insert(0, source)
    try:
        importlib.import_module("inline_attention")
    finally:
        sys.path.remove(source)


def _entry(name: str) -> typing.Any:
    import timm

    def load(pretrained: bool = False, **arguments: typing.Any) -> typing.Any:
        return timm.create_model(name, pretrained=pretrained, **arguments)

    load.__name__ = name
    load.__doc__ = f"""{timm.models.model_entrypoint(name).__doc__}

    Args:
        pretrained: load the published weights, where there are any.
        arguments: of `timm.create_model`: num_classes, img_size, in_chans, features_only, mixer, ...
    """
    return load


def _entries() -> dict[str, typing.Any]:
    import timm

    return {name: _entry(name) for name in timm.list_models("inline_*")}


# torch.hub names missing dependencies itself, after it has run this file.
if all(importlib.util.find_spec(name) for name in dependencies):
    _import_package()
    globals().update(_entries())
