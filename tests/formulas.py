"""Every mixer written out once more, image by image and head by head, from raw weights: nothing is shared with the package.

The newer ones are in `formulas_rivals.py`.

Masked tokens are taken out of keys and values altogether; convolutions are torch's own, on values with zeros in their place.
"""

from math import pi, prod, sqrt
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from .formulas_rivals import RIVALS, projected


def softmax(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return each_head(lambda q, k, v: torch.softmax(q @ k.T / sqrt(q.shape[1]), 1) @ v, q, k, v, heads)


def inline(q: Tensor, k: Tensor, v: Tensor, heads: int, scales=None, base=None) -> Tensor:
    size = q.shape[1] // heads
    columns = [slice(h * size, (h + 1) * size) for h in range(heads)]
    outs = []
    for c, scale in zip(columns, [1 / sqrt(size)] * heads if scales is None else scales, strict=True):
        similarity = scale * (q[:, c] @ k[:, c].T) / len(k)
        out = (similarity - similarity.mean(1, keepdim=True)) @ v[:, c]
        if base == "linear":
            outs.append(out + divided(q[:, c].clamp(min=0), k[:, c].clamp(min=0), v[:, c]))
        else:
            outs.append(out + v[:, c].mean(0))
    return torch.cat(outs, 1)


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    similarity = q @ k.T
    return similarity / (similarity.sum(1, keepdim=True) + len(k) * 1e-6) @ v


def linear(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return each_head(lambda q, k, v: divided(q.clamp(min=0), k.clamp(min=0), v), q, k, v, heads)


def efficient(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    return each_head(lambda q, k, v: torch.softmax(q, 1) @ (torch.softmax(k, 0).T @ v), q, k, v, heads)


def hydra(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k = q / q.norm(dim=1, keepdim=True), k / k.norm(dim=1, keepdim=True)
    return q * (k * v).sum(0)


def angular(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    def head(q, k, v):
        cosine = (q / q.norm(dim=1, keepdim=True)) @ (k / k.norm(dim=1, keepdim=True)).T
        return (0.5 + cosine / pi) @ v / len(k)

    return each_head(head, q, k, v, heads)


def focused(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    def sharpen(x):
        y = x.clamp(min=0) + 1e-6
        return y.norm(dim=1, keepdim=True) / (y * y * y).norm(dim=1, keepdim=True) * y * y * y

    return each_head(divided, sharpen(q), sharpen(k), v, heads)


FORMULAS = {
    "inline": inline,
    "softmax": softmax,
    "linear": linear,
    "efficient": efficient,
    "hydra": hydra,
    "angular": angular,
    "enhanced": linear,
    "focused": focused,
}


def each_head(head, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    size = q.shape[1] // heads
    columns = [slice(h * size, (h + 1) * size) for h in range(heads)]
    return torch.cat([head(q[:, c], k[:, c], v[:, c]) for c in columns], 1)


def formula(
    name: str,
    state: dict[str, Tensor],
    x: Tensor,
    grid,
    heads: int,
    prefix: int,
    mask: Tensor | None,
    context=None,
    options=None,
) -> Tensor:
    """The mixer's output for parameters by name, (B, M, C)."""
    return torch.stack(
        [
            one_image(
                name,
                state,
                x[b],
                grid,
                heads,
                prefix,
                torch.ones(len(x[b] if context is None else context[b]), dtype=torch.bool) if mask is None else mask[b],
                None if context is None else context[b],
                options or {},
            )
            for b in range(len(x))
        ]
    )


def one_image(name, state, x, grid, heads, prefix, valid, context, options):
    dim = x.shape[1]
    source = x if context is None else context
    if name in RIVALS and context is None:
        x = source = torch.where(valid[:, None], x, 0)
    q, k, v = projected(name, state, x, source, dim)
    if name in RIVALS:
        asking = valid if context is None else torch.ones(len(x), dtype=torch.bool)
        call = SimpleNamespace(state=state, heads=heads, grid=grid, prefix=prefix, valid=valid, asking=asking, options=options)
        out = RIVALS[name](q, k, v, call)
    else:
        more = {"scales": state.get("scale"), "base": options.get("base")} if name == "inline" else {}
        out = FORMULAS[name](q, k[valid], v[valid], heads, **more)
    out, others = out[:, :dim], out[:, dim:]
    v = v[:, :dim]
    if context is None:
        around = torch.where(valid[:, None], v, 0)
        if "local.hidden.weight" in state:
            x_mean = x[valid].mean(0)
            # two 1x1 convolutions grouped by heads, C -> C -> 9 C, as the authors have them
            hidden = F.conv1d(
                x_mean[None, :, None],
                state["local.hidden.weight"].flatten(0, 1)[..., None],
                state["local.hidden.bias"],
                groups=heads,
            )
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / sqrt(2)))
            taps = F.conv1d(hidden, state["local.taps.weight"].flatten(0, 1)[..., None], state["local.taps.bias"], groups=heads)
            out = out + on_grid(around, taps.view(dim, 1, *(3,) * len(grid)), grid, prefix)
        if name == "angular":
            assert state["convolution.weight"].shape == (heads, 9)
            size = dim // heads
            rows = around.T.reshape(heads, size, -1).transpose(0, 1)  # the d channels of a head as a batch
            out = (
                out
                + F.conv1d(rows, state["convolution.weight"][:, None], padding=4, groups=heads)
                .transpose(0, 1)
                .reshape(dim, -1)
                .T
            )
        if name == "focused":
            assert state["convolution.weight"].shape == (dim // heads, *(5,) * len(grid))
            filters = torch.cat([state["convolution.weight"][:, None]] * heads)
            out = out + on_grid(around, filters, grid, prefix)
    out = torch.cat([out, others], 1)
    return out if name == "mila" else out @ state["proj.weight"].T + state["proj.bias"]


def on_grid(v, kernels, grid, prefix):
    """Depthwise convolution of tokens after the prefix, and zeros for the prefix."""
    convolution = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(grid)]
    image = v[prefix:].T.reshape(1, -1, *grid)
    out = convolution(image, kernels, padding=kernels.shape[-1] // 2, groups=len(kernels))
    return torch.cat([torch.zeros_like(v[:prefix]), out.reshape(-1, prod(grid)).T])
