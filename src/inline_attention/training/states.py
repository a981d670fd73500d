"""Weights and optimizer states, whole and by name, however the model is wrapped or sharded.

So a file does not show how many processes wrote it, and a run may go on with another number of them.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""For writing: the main process gets everything, on the CPU, the others nothing."""
EVERYWHERE = StateDictOptions(full_state_dict=True)

GROUP = "#"
"""In the place of a parameter's name: of a whole group, by its number."""
Plain = int | float | bool | str | None


@dataclass(frozen=True)
class OptimizerState:
    """What an optimizer remembers: tensors as 'moment:parameter', and plain values of parameters and groups."""

    tensors: dict[str, Tensor]
    plain: dict[str, Plain]
    groups: list[dict[str, Plain]]


def gather(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their plain names. Every process must call it; with sharding, the main one gets them."""
    found: dict[str, Any] = get_model_state_dict(model, options=WHOLE)
    return found


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Lay whole weights into a model."""
    states: dict[str, Any] = dict(weights)
    set_model_state_dict(model, states, options=EVERYWHERE)


def gather_optimizer(model: nn.Module, optimizer: Any) -> OptimizerState:
    """An optimizer's states, whole. Every process must call it; with sharding, the main one gets them."""
    found = _sharded_state(model, optimizer, WHOLE) if _is_sharded(model) else _named_state(model, optimizer)
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Plain] = {}
    for name, moments in found.get("state", {}).items():
        for moment, value in moments.items():
            if isinstance(value, Tensor):
                tensors[f"{moment}:{name}"] = value
            elif isinstance(value, Plain):
                plain[f"{moment}:{name}"] = value
            else:
                kind = type(optimizer).__name__
                raise ValueError(
                    f"{kind} remembers a {type(value).__name__} ({moment}), which no checkpoint could hold: take another"
                )
    groups: list[dict[str, Plain]] = []
    for number, group in enumerate(found.get("param_groups", [])):
        groups.append({name: value for name, value in group.items() if isinstance(value, Plain)})
        tensors |= {f"{name}:{GROUP}{number}": value for name, value in group.items() if isinstance(value, Tensor)}
    return OptimizerState(tensors, plain, groups)


def restore_optimizer(model: nn.Module, optimizer: Any, kept: OptimizerState) -> None:
    """Lay whole states into an optimizer that was built from the same recipe."""
    sharded = _is_sharded(model)
    states = _sharded_state(model, optimizer, EVERYWHERE) if sharded else _named_state(model, optimizer)
    state: dict[str, dict[str, Any]] = {}
    for key, value in [*kept.tensors.items(), *kept.plain.items()]:
        moment, _, name = key.partition(":")
        state.setdefault(name, {})[moment] = value
    groups = states["param_groups"]
    counters = [state.pop(f"{GROUP}{number}", {}) for number in range(len(groups))]
    if len(groups) != len(kept.groups):
        raise ValueError(
            f"the checkpoint's optimizer has {len(kept.groups)} groups of parameters, and the recipe's {len(groups)}"
        )
    merged = [{**now, **then, **count} for now, then, count in zip(groups, kept.groups, counters, strict=True)]
    if sharded:
        set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": merged}, options=EVERYWHERE)  # type: ignore[dict-item]
        return
    places = {name: place for group in _numbered(model, optimizer) for place, name in group.items()}
    numbered = [{**group, "params": list(own)} for group, own in zip(merged, _numbered(model, optimizer), strict=True)]
    optimizer.load_state_dict({"state": {places[name]: value for name, value in state.items()}, "param_groups": numbered})


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _sharded_state(model: nn.Module, optimizer: Any, how: StateDictOptions) -> dict[str, Any]:
    found: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=how)
    return found


def _numbered(model: nn.Module, optimizer: Any) -> list[dict[int, str]]:
    """For each group, the numbers that the optimizer gives parameters, and their names without a wrapper's prefix."""
    names = {id(parameter): name.removeprefix("module.") for name, parameter in model.named_parameters()}
    found, number = [], 0
    for group in optimizer.param_groups:
        found.append({number + place: names[id(parameter)] for place, parameter in enumerate(group["params"])})
        number += len(group["params"])
    return found


def _named_state(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """`optimizer.state_dict()` with names in the place of numbers."""
    state = optimizer.state_dict()
    names = {place: name for group in _numbered(model, optimizer) for place, name in group.items()}
    return {**state, "state": {names[place]: value for place, value in state["state"].items()}}
