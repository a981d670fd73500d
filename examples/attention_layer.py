"""The layer alone: on a sequence, an image and a volume, with a class token, padding, and its attention weights."""

import torch

from inline_attention import InLineAttention

torch.manual_seed(0)
DIM, HEADS = 64, 4

for what, grid in {"sequence": (50,), "image": (14, 9), "volume": (4, 7, 7)}.items():
    layer = InLineAttention(DIM, HEADS, grid_dims=len(grid))
    tokens = torch.randn(2, torch.Size(grid).numel(), DIM)  # (batch, tokens, channels), row by row
    print(f"{what:8} {grid!s:10} {tuple(tokens.shape)} -> {tuple(layer(tokens, grid).shape)}")

# A class token comes first. A mask marks the valid tokens: the others have no influence.
layer, grid = InLineAttention(DIM, HEADS).eval(), (14, 9)
tokens = torch.randn(1, 1 + 14 * 9, DIM)
mask = torch.ones(1, 1 + 14 * 9, dtype=torch.bool)
mask[:, 100:] = False
with torch.no_grad():
    before = layer(tokens, grid, num_prefix_tokens=1, mask=mask)
    tokens[:, 100:] = 1e6
    after = layer(tokens, grid, num_prefix_tokens=1, mask=mask)
print("padding has no influence:", torch.equal(before[:, :100], after[:, :100]))

# The exact attention weights of chosen queries, which the layer itself never computes.
rows = layer.attention_rows(torch.randn(1, 14 * 9, DIM), grid, queries=[0, 60])
print(f"weights {tuple(rows.mixed.shape)}; they sum to {rows.mixed.sum(-1).mean():.4f}, the least is {rows.mixed.min():.4f}")
