"""Weights and optimizer states, whole and by name, however the model is wrapped or sharded.

So a file does not show how many processes wrote it, and a run may go on with another number of them.
"""

from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""For writing: the main process gets everything, on the CPU, the others nothing."""
EVERYWHERE = StateDictOptions(full_state_dict=True)


def gather(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their plain names. Every process must call it; with sharding, the main one gets them."""
    found: dict[str, Any] = get_model_state_dict(model, options=WHOLE)
    return found


def gather_optimizer(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """The optimizer's tensors as 'moment:parameter'. Rates and decays come from the recipe and are not kept."""
    found: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    return {
        f"{moment}:{name}": value
        for name, moments in found.get("state", {}).items()
        for moment, value in moments.items()
        if isinstance(value, Tensor)
    }


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Lay whole weights into a model."""
    states: dict[str, Any] = dict(weights)
    set_model_state_dict(model, states, options=EVERYWHERE)


def restore_optimizer(model: nn.Module, optimizer: Any, tensors: dict[str, Tensor]) -> None:
    """Lay whole states into an optimizer that was built from the same recipe."""
    states: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=EVERYWHERE)
    for name, moments in states["state"].items():
        for moment, value in moments.items():
            if isinstance(value, Tensor):
                if f"{moment}:{name}" not in tensors:
                    raise ValueError(f"the checkpoint has no {moment} of {name}: it is of another optimizer")
                moments[moment] = tensors[f"{moment}:{name}"]
    set_optimizer_state_dict(model, optimizer, states, options=EVERYWHERE)
