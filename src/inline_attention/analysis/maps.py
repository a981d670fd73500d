"""Attention maps: what one query of a picture weighs, in every block. Exact, also for linear attention."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.mixer import Mixer


@dataclass(frozen=True)
class QueryMap:
    """Weights of one query over the grid of one block, row-major: mean over heads, mean over channels of the local part."""

    block: str
    mixed: Tensor  # (B, H, W)
    local: Tensor  # (B, H, W)
    query: tuple[int, int]


@torch.no_grad()
def query_maps(model: nn.Module, pixels: Tensor, point: tuple[float, float]) -> list[QueryMap]:
    """Maps of the query at a point of the picture, for each block that has a map.

    Args:
        pixels: (B, C, H, W), as the model takes them.
        point: (y, x) of the query as shares of the picture's height and width.
    """
    found: list[QueryMap] = []

    def watch(name: str) -> Any:
        def hook(mixer: Mixer, inputs: tuple[Tensor, Any], options: dict[str, Any]) -> None:
            x, grid = inputs
            if len(grid) != 2:
                return
            prefix = options.get("num_prefix_tokens", 0)
            place = tuple(min(side - 1, int(share * side)) for share, side in zip(point, grid, strict=True))
            rows = mixer.attention_rows(x, grid, [prefix + place[0] * grid[1] + place[1]], **options)
            mixed = rows.mixed.mean(1)[:, 0, prefix:]
            if mixed.shape[1] != grid[0] * grid[1]:
                return  # keys of a smaller map
            local = torch.zeros_like(mixed) if rows.local is None else rows.local.mean(1)[:, 0, prefix:]
            shape = (len(x), *grid)
            found.append(QueryMap(name, mixed.reshape(shape), local.reshape(shape), (place[0], place[1])))

        return hook

    mixers = {name: module for name, module in model.named_modules() if isinstance(module, Mixer)}
    hooks = [mixer.register_forward_pre_hook(watch(name), with_kwargs=True) for name, mixer in mixers.items()]
    was_training = model.training
    try:
        model.eval()(pixels)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return found
