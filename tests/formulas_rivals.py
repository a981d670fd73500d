"""The newer mixers written out once more, for one image and from raw weights: nothing is shared with the package.

Each function takes q (M, width), k and v (N, width) of all tokens, and `call`: the parameters by name, heads, grid, prefix,
`valid` (N,), `asking` (M,), the valid queries, and the mixer's options. It returns what is mixed, (M, width).
"""

from itertools import product
from math import ceil, floor, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor


def by_head(function, call, *tokens: Tensor) -> Tensor:
    size = tokens[0].shape[1] // call.heads
    parts = [[t[:, h * size : (h + 1) * size] for t in tokens] for h in range(call.heads)]
    return torch.cat([function(h, *part) for h, part in enumerate(parts)], 1)


def elu1(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def mala(q, k, v, call):
    def head(_, q, k, v):
        s, phi_q, phi_k = 1 / sqrt(q.shape[1]), elu1(q), elu1(k[call.valid])
        values = v[call.valid]
        similarity = phi_q @ phi_k.T
        linear = similarity / similarity.sum(1, keepdim=True) @ values
        centred = phi_k - phi_k.mean(0)
        z = s * similarity.mean(1, keepdim=True)
        shrink = (1 + 1 / (z + 1e-6)) / (1 + 1 / z)  # the epsilon in the divisor
        covariance = centred.T @ (values - values.mean(0)) / len(values)
        return shrink * (linear + s * phi_q @ covariance) + (shrink - 1) * z * values.mean(0)

    return by_head(head, call, q, k, v)


def rala(q, k, v, call):
    def head(_, q, k, v):
        phi_q, phi_k = elu1(q), elu1(k[call.valid])
        a = torch.softmax(phi_k @ phi_q[call.asking].mean(0) / sqrt(q.shape[1]), 0)
        weights = a * (phi_q @ phi_k.T)
        return weights / (weights.sum(1, keepdim=True) + 1e-6) @ v[call.valid]

    return by_head(head, call, q, k, v)


def divided(phi_q, phi_k, v):
    similarity = phi_q @ phi_k.T
    return similarity / (similarity.sum(1, keepdim=True) + len(phi_k) * 1e-6) @ v


def mila(q, k, v, call):
    return by_head(lambda _, q, k, v: divided(elu1(q), elu1(k[call.valid]), v[call.valid]), call, q, k, v)


def nala(q, k, v, call):
    def head(_, q, k, v):
        rows = []
        for query in q:
            r = query.norm()
            p = 3 * (0.5 + torch.tanh(r))
            rows.append(torch.cat([(query.clamp(min=0) / r) ** p, ((-query).clamp(min=0) / r) ** p]))
        keys = torch.cat([k.clamp(min=0) ** 3, (-k).clamp(min=0) ** 3], 1)
        return divided(torch.stack(rows), keys[call.valid], v[call.valid])

    return by_head(head, call, q, k, v)


def resampled(values: Tensor, grid) -> Tensor:
    """(C, *old) -> (C, *grid), linearly, corners not aligned."""
    for axis, new in enumerate(grid, start=1):
        old, slices = values.shape[axis], []
        for i in range(new):
            at = max(0.0, (i + 0.5) * old / new - 0.5)
            low = floor(at)
            high, share = min(low + 1, old - 1), at - low
            slices.append((1 - share) * values.select(axis, low) + share * values.select(axis, high))
        values = torch.stack(slices, axis)
    return values


def pola(q, k, v, call):
    c = torch.log(1 + torch.exp(call.state["scale"].flatten()))
    p = 1 + 4 / (1 + torch.exp(-call.state["power"].flatten()))
    if "positions" in call.state and call.grid is not None:
        positions = resampled(call.state["positions"][0], call.grid).flatten(1).T
        k = torch.cat([k[: call.prefix], k[call.prefix :] + positions])

    def signs(x):
        return (x / c).clamp(min=0) ** p, (-x / c).clamp(min=0) ** p

    def head(_, q_plus, q_minus, k_plus, k_minus, v):
        keys, half = torch.cat([k_plus, k_minus], 1)[call.valid], v.shape[1] // 2
        same = divided(torch.cat([q_plus, q_minus], 1), keys, v[call.valid, :half])
        opposite = divided(torch.cat([q_minus, q_plus], 1), keys, v[call.valid, half:])
        return torch.cat([same, opposite], 1)

    return by_head(head, call, *signs(q), *signs(k), v)


def mhla(q, k, v, call):
    """The dense weights; -1 is the block of the prefix tokens."""
    counts = [call.options.get("blocks", 4)] * len(call.grid)
    sides = [ceil(length / count) for length, count in zip(call.grid, counts, strict=True)]
    blocks, places = [-1] * call.prefix, [("prefix", i) for i in range(call.prefix)]
    for position in product(*map(range, call.grid)):
        number = 0
        for at, side, count in zip(position, sides, counts, strict=True):
            number = number * count + at // side
        blocks.append(number)
        places.append(tuple(at % side for at, side in zip(position, sides, strict=True)))
    p = call.state["mixing"]
    p = torch.cat([p, p.mean(1, keepdim=True)], 1)  # the last row and column are those of the prefix tokens
    p = torch.cat([p, p.mean(0, keepdim=True)], 0)[blocks][:, blocks]
    blocks = torch.tensor(blocks)
    same_block = (blocks[:, None] == blocks).double()
    same_place = torch.tensor([[float(a == b) for b in places] for a in places], dtype=torch.double)
    to_prefix, on_grid = same_block * 0 + (blocks == -1), (blocks != -1)[:, None]

    def head(_, q, k, v):
        similarity = ((q.clamp(min=0) + 1e-6) @ (k.clamp(min=0) + 1e-6).T) * call.valid
        divisor = (p * similarity).sum(1, keepdim=True)
        if call.options.get("divisor") == "published":
            own = call.valid * (same_block * similarity).sum(1)  # of each token its own query with the keys of its block
            same = (p * same_place * own).sum(1, keepdim=True) + (p * to_prefix * similarity).sum(1, keepdim=True)
            divisor = torch.where(on_grid, same, divisor)
        return p * similarity / (divisor + 1e-6) @ v

    return by_head(head, call, q, k, torch.where(call.valid[:, None], v, 0))


def agent(q, k, v, call):
    side, shape = call.options.get("agents", 7), call.grid
    cells = list(product(*map(range, shape)))

    def biases(kind, h):
        table = resampled(call.state[f"{kind}_table"][h], shape)
        for axis, length in enumerate(shape):
            line = resampled(call.state[f"{kind}_lines.{axis}"][h], (length,))
            table = table + line.reshape(-1, *(length if other == axis else 1 for other in range(len(shape))))
        first = call.state.get(f"{kind}_prefix")
        before = torch.zeros(len(table), call.prefix) if first is None else first[h].expand(-1, call.prefix)
        return torch.cat([before, table.flatten(1)], 1)  # (n, prefix + N)

    def head(h, q, k, v):
        agents = []
        for window in product(range(side), repeat=len(shape)):
            limits = [(i * length // side, ceil((i + 1) * length / side)) for i, length in zip(window, shape, strict=True)]
            inside = [
                call.prefix + number
                for number, cell in enumerate(cells)
                if call.asking[call.prefix + number] and all(a <= at < b for at, (a, b) in zip(cell, limits, strict=True))
            ]
            agents.append(q[inside].mean(0) if inside else torch.zeros_like(q[0]))
        agents, s = torch.stack(agents), 1 / sqrt(q.shape[1])
        read = torch.softmax((s * agents @ k.T + biases("key", h))[:, call.valid], 1) @ v[call.valid]
        return torch.softmax(s * q @ agents.T + biases("query", h).T, 1) @ read

    return by_head(head, call, q, k, v)


def vit3(q, k, v, call):
    """The step by autograd."""
    size = q.shape[1] // (call.heads + 1)

    def step(weights, model, keys, values):
        made = model(keys, *weights)
        loss = -(made * values).sum() / 3 / len(values)
        return torch.autograd.grad(loss, weights, create_graph=True)

    def unit(x, w1, w2):
        gate = x @ w2
        return (x @ w1) * gate / (1 + torch.exp(-gate))

    outs = []
    for h in range(call.heads):
        columns = slice(h * size, (h + 1) * size)
        weights = [call.state["w1"][h], call.state["w2"][h]]
        gradients = step(weights, unit, k[call.valid][:, columns], v[call.valid][:, columns])
        weights = [w - g / (1 + (g * g).sum(0).sqrt()) for w, g in zip(weights, gradients, strict=True)]
        outs.append(unit(q[:, columns], *weights))
    convolution = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(call.grid)]

    def image(tokens):
        kept = torch.where(call.valid[:, None], tokens, 0)[call.prefix :, call.heads * size :]
        return kept.T.reshape(1, size, *call.grid)

    def convolve(x, kernels):
        return convolution(x, kernels[:, None], padding=1, groups=size)

    kernels, on_grid = call.state["w3"], max(1, int(call.valid[call.prefix :].sum()))
    loss = -(convolve(image(k), kernels) * image(v)).sum() / 3 / on_grid
    (gradient,) = torch.autograd.grad(loss, kernels, create_graph=True)
    lengths = gradient.flatten(1).square().sum(1).clamp(min=1e-300).sqrt().view(-1, *(1 for _ in call.grid))
    second = convolve(image(q), kernels - gradient / (1 + lengths)).reshape(size, -1).T
    outs.append(torch.cat([q.new_zeros(call.prefix, size), second]))
    return torch.cat(outs, 1)


RIVALS = {"mala": mala, "rala": rala, "pola": pola, "mhla": mhla, "agent": agent, "mila": mila, "nala": nala, "vit3": vit3}


def projected(name, state, x, source, dim):
    """q, k and v of all tokens."""
    if name == "mhla":
        normal = (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        x = source = normal * state["norm.weight"] + state["norm.bias"]
    q = x @ state["q.weight"].T + state["q.bias"]
    if name == "mila":
        return q, source @ state["k.weight"].T + state["k.bias"], source
    k, v = (source @ state["kv.weight"].T + state["kv.bias"]).chunk(2, 1)
    if name == "mhla":
        eps = torch.finfo(x.dtype).eps
        q, k = (t / (t.square().mean(1, keepdim=True) + eps).sqrt() for t in (q, k))
        q, k = q * state["q_rms.weight"], k * state["k_rms.weight"]
    return q, k, v
