"""One process or many: the accelerator, and the weights and optimizer state of a model that may be wrapped or sharded.

States are gathered whole and by parameter name. A checkpoint therefore does not depend on the number of processes that wrote
it, and a run can be resumed with another number of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from ..ops.checks import available_devices, check_device
from .config import RunConfig

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""For writing: the main process gets everything, on the CPU, the others nothing."""
WHOLE_EVERYWHERE = StateDictOptions(full_state_dict=True)

GROUP = "#"
"""Before the number of a parameter group, in the place of a parameter's name."""
Plain = int | float | bool | str | None


def make_accelerator(
    run: RunConfig, device: str, blocks: Sequence[str] = (), out: Path | None = None, *, unused_parameters: bool = False
) -> Accelerator:
    """accelerate's `Accelerator`: on a GPU or other accelerator if there is one, else on the CPU.

    Args:
        run: precision, and whether to shard.
        device: 'auto', 'cpu', or the name of the accelerator that must be available.
        blocks: classes that are sharded one by one.
        out: folder for TensorBoard's events; None to write none.
        unused_parameters: the model may have parameters that no loss depends on.
    """
    check_device(device)
    on_cpu = device == "cpu" or available_devices() == ["cpu"]
    if run.precision == "fp16" and on_cpu:
        raise ValueError("run.precision fp16 needs a GPU: take bf16 or fp32")
    return Accelerator(
        mixed_precision=PRECISIONS[run.precision],
        cpu=on_cpu,
        fsdp_plugin=fsdp_plugin(blocks) if run.fsdp else None,
        log_with=None if out is None else "tensorboard",
        project_dir=None if out is None else str(out),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)] if unused_parameters else [],
    )


def fsdp_plugin(blocks: Sequence[str]) -> FullyShardedDataParallelPlugin:
    """Shard block by block; on CPUs accelerate falls back to DDP."""
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=list(blocks),
        cpu_ram_efficient_loading=False,
    )


@dataclass(frozen=True)
class OptimizerState:
    """An optimizer's state: tensors as 'moment:parameter', and plain values of parameters and groups."""

    tensors: dict[str, Tensor]
    plain: dict[str, Plain]
    groups: list[dict[str, Plain]]


def gather(model: nn.Module) -> dict[str, Tensor]:
    """All weights by their plain names. Every process must call it; with sharding, only the main one gets them."""
    found: dict[str, Any] = get_model_state_dict(model, options=WHOLE)
    return found


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load whole weights into a model."""
    whole: dict[str, Any] = dict(weights)
    set_model_state_dict(model, whole, options=WHOLE_EVERYWHERE)


def gather_optimizer(model: nn.Module, optimizer: Any) -> OptimizerState:
    """An optimizer's whole state. Every process must call it; with sharding, only the main one gets it."""
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
                    f"{kind} has a {type(value).__name__} in its state ({moment}), which no checkpoint can hold: take another"
                )
    groups: list[dict[str, Plain]] = []
    for number, group in enumerate(found.get("param_groups", [])):
        groups.append({name: value for name, value in group.items() if isinstance(value, Plain)})
        tensors |= {f"{name}:{GROUP}{number}": value for name, value in group.items() if isinstance(value, Tensor)}
    return OptimizerState(tensors, plain, groups)


def restore_optimizer(model: nn.Module, optimizer: Any, saved: OptimizerState) -> None:
    """Load a whole state into an optimizer that was built from the same recipe."""
    sharded = _is_sharded(model)
    current = _sharded_state(model, optimizer, WHOLE_EVERYWHERE) if sharded else _named_state(model, optimizer)
    state: dict[str, dict[str, Any]] = {}
    for key, value in [*saved.tensors.items(), *saved.plain.items()]:
        moment, _, name = key.partition(":")
        state.setdefault(name, {})[moment] = value
    groups = current["param_groups"]
    counters = [state.pop(f"{GROUP}{number}", {}) for number in range(len(groups))]
    if len(groups) != len(saved.groups):
        raise ValueError(
            f"the checkpoint's optimizer has {len(saved.groups)} groups of parameters, and the recipe's {len(groups)}"
        )
    merged = [{**now, **before, **count} for now, before, count in zip(groups, saved.groups, counters, strict=True)]
    if sharded:
        set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": merged}, options=WHOLE_EVERYWHERE)  # type: ignore[dict-item]
        return
    numbers = {name: number for group in _parameter_names(model, optimizer) for number, name in group.items()}
    numbered = [{**group, "params": list(own)} for group, own in zip(merged, _parameter_names(model, optimizer), strict=True)]
    optimizer.load_state_dict({"state": {numbers[name]: value for name, value in state.items()}, "param_groups": numbered})


def _is_sharded(model: nn.Module) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _sharded_state(model: nn.Module, optimizer: Any, how: StateDictOptions) -> dict[str, Any]:
    found: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=how)
    return found


def _parameter_names(model: nn.Module, optimizer: Any) -> list[dict[int, str]]:
    """For each group: the optimizer's number of each parameter, and its name without a wrapper's prefix."""
    names = {id(parameter): name.removeprefix("module.") for name, parameter in model.named_parameters()}
    found, number = [], 0
    for group in optimizer.param_groups:
        found.append({number + offset: names[id(parameter)] for offset, parameter in enumerate(group["params"])})
        number += len(group["params"])
    return found


def _named_state(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """`optimizer.state_dict()` with parameter names instead of numbers."""
    state = optimizer.state_dict()
    names = {number: name for group in _parameter_names(model, optimizer) for number, name in group.items()}
    return {**state, "state": {names[number]: value for number, value in state["state"].items()}}
