"""`inline convert`: convert a published checkpoint to safetensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from ..lite.text import printable


@dataclass(frozen=True)
class Convert:
    """Convert a published checkpoint to safetensors with this package's parameter names."""

    file: Annotated[Path, tyro.conf.Positional]
    """The checkpoint: the authors' pickle (InLine, Swin, PVT, CSWin, DeiT) or safetensors."""
    out: Annotated[Path, tyro.conf.Positional]
    """The file to write, ending in .safetensors."""
    model: str | None = None
    """Name of the model, where several fit: models that differ in windows only have the same weights."""
    ema: bool = False
    """Take the moving average that some files hold beside the weights."""

    def run(self) -> None:
        """Read the checkpoint, recognise its model, check, write, print."""
        import torch
        from timm.models import create_model

        from ..models.load_official import load_official, read_checkpoint, select_weights
        from ..models.published_models import identify
        from ..training.checkpoint import to_bytes, write_atomically
        from .arguments import prepare_folder

        if self.out.suffix != ".safetensors" or self.out.is_dir():
            raise ValueError(f"the file to write must end in .safetensors, got {self.out}")
        state = select_weights(read_checkpoint(self.file), ema=self.ema, source=str(self.file))
        found = identify(state)
        if not found:
            raise ValueError(f"{self.file} is of none of the package's models, nor of a softmax twin of one")
        names = ", ".join(name for name, _ in found)
        found = [(name, arguments) for name, arguments in found if self.model in (None, name)]
        if len(found) != 1:
            raise ValueError(f"{self.file} fits {names}: choose one with --model, got {self.model}")
        name, arguments = found[0]
        prepare_folder(self.out.parent)
        with torch.device("meta"):
            model = create_model(name, **arguments)
        model = model.to_empty(device="cpu")
        report = load_official(model, state)
        write_atomically(self.out, to_bytes(model.state_dict(), {"model": name, "arguments": arguments}))
        print(f"{printable(self.file)} is {name}{_call(arguments)}")
        print(report)
        print(f"Written: {self.out}")
        print(f"Load it: timm.create_model({', '.join([repr(name), *_given(arguments)])}, checkpoint_path={str(self.out)!r})")


def _given(arguments: dict[str, object]) -> list[str]:
    return [f"{key}={value!r}" for key, value in arguments.items()]


def _call(arguments: dict[str, object]) -> str:
    return f" with {', '.join(_given(arguments))}" if arguments else ""
