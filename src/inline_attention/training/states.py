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

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, flatten_optimizer_state_dict=True)


def gather(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their plain names. Every process must call it; with sharding, the main one gets them."""
    found: dict[str, Any] = get_model_state_dict(model, options=WHOLE)
    return found


def gather_optimizer(model: nn.Module, optimizer: Any) -> dict[str, Tensor]:
    """The optimizer's tensors by their parameters' names. Rates and decays come from the recipe and are not kept."""
    found: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    return {name: value for name, value in found.items() if name.startswith("state.") and isinstance(value, Tensor)}


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Lay whole weights into a model."""
    states: dict[str, Any] = dict(weights)
    set_model_state_dict(model, states, options=WHOLE)


def restore_optimizer(model: nn.Module, optimizer: Any, tensors: dict[str, Tensor]) -> None:
    """Lay whole states into an optimizer that was built from the same recipe."""
    states: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    missing = [name for name, value in states.items() if isinstance(value, Tensor) and name not in tensors]
    if missing:
        raise ValueError(f"the checkpoint has no {missing[0]}: it is of another optimizer")
    states.update(tensors)
    set_optimizer_state_dict(model, optimizer, states, options=WHOLE)
