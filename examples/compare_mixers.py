"""Compare softmax with InLine at growing sizes: the time of one layer for one image."""

import time

import torch

from inline_attention import MIXERS

DIM, HEADS, ROUNDS = 64, 2, 3
SIDES = (16, 32, 64)

torch.manual_seed(0)


def milliseconds(layer: torch.nn.Module, side: int) -> float:
    """The best of a few passes over a grid of side x side tokens."""
    tokens = torch.randn(1, side * side, DIM)
    best = float("inf")
    for _ in range(ROUNDS + 1):  # the first one warms up
        start = time.perf_counter()
        layer(tokens, (side, side))
        best = min(best, time.perf_counter() - start)
    return 1000 * best


print("tokens  ", *(f"{side * side:>9,}" for side in SIDES), "  growth")
times = {}
with torch.no_grad():
    for name in ("softmax", "inline"):
        layer = MIXERS[name](DIM, HEADS).eval()
        times[name] = [milliseconds(layer, side) for side in SIDES]
        growth = times[name][-1] / times[name][0]
        print(f"{name:8}", *(f"{ms:>6.2f} ms" for ms in times[name]), f"{growth:>6.0f} x")

more = (SIDES[-1] / SIDES[0]) ** 2
print(
    f"For {more:.0f} times the tokens. At the last, inline is {times['softmax'][-1] / times['inline'][-1]:.1f} times as fast."
)
print("All mixers:", *MIXERS)
