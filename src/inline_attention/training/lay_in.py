"""Weights of a file into a model."""

from pathlib import Path

from torch import nn

from ..models.backbone import Backbone
from ..models.checkpoints import load_official, read_checkpoint, select_weights


def lay_in(model: nn.Module, path: Path, *, ema: bool = False, headless: bool = False) -> str:
    """Lay a file's weights into a model of this package, fitting sizes, or into any other as they are; what is said of it.

    Args:
        ema: take the moving average out of a file that holds both.
        headless: the model may lack the classifier, and what else of the file comes after its maps.
    """
    if isinstance(model, Backbone):
        return str(load_official(model, path, ema=ema))
    state = select_weights(read_checkpoint(path), ema=ema, source=str(path))
    own = model.state_dict()
    left = [name for name in state if name not in own] if headless else []
    try:
        model.load_state_dict({name: value for name, value in state.items() if name not in left})
    except RuntimeError as error:
        raise ValueError(f"{path} does not fit {type(model).__name__}: {' '.join(str(error).split())[:200]}") from error
    told = [name for name in left if not name.endswith(".num_batches_tracked")]  # which frozen norms do not keep
    return f"{len(state) - len(left)} tensors matched" + (f", left out: {', '.join(told)}" if told else "")


def weights_of(what: str) -> Path:
    """The file of a run's best weights, or the file that is named."""
    path = Path(what)
    if path.is_dir() and not (path / "best.safetensors").is_file():
        raise ValueError(f"{path} holds no best.safetensors: no run, or one that was stopped before its first evaluation")
    return path / "best.safetensors" if path.is_dir() else path
