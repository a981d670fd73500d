"""One process or many: what the launcher says, through accelerate."""

from pathlib import Path

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

from .recipe import RunPart

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(run: RunPart, device: str, blocks: list[str], out: Path, *, unused: bool = False) -> Accelerator:
    """On an accelerator if there is one, or on the CPU.

    Args:
        run: precision, and whether to shard.
        device: 'auto', 'cpu', or the name of the accelerator that must be there.
        blocks: classes that are sharded one by one.
        out: folder for TensorBoard's events.
        unused: the model may have parameters that no loss depends on.
    """
    there = str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
    if device not in ("auto", "cpu", there):
        raise ValueError(f"unknown device {device!r}; this machine has: {', '.join(dict.fromkeys(['cpu', there]))}")
    if run.precision == "fp16" and (there == "cpu" or device == "cpu"):
        raise ValueError("run.precision fp16 needs a GPU: take bf16 or fp32")
    return Accelerator(
        mixed_precision=PRECISIONS[run.precision],
        cpu=device == "cpu" or there == "cpu",
        fsdp_plugin=fsdp_plugin(blocks) if run.fsdp else None,
        log_with="tensorboard",
        project_dir=str(out),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)] if unused else [],
    )


def fsdp_plugin(blocks: list[str]) -> FullyShardedDataParallelPlugin:
    """Shard block by block; on CPUs accelerate falls back to DDP."""
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=blocks,
        cpu_ram_efficient_loading=False,
    )
