"""A mask is (B, N), True where a key is valid; what is not valid is left out of every sum."""

import torch
from torch import Tensor


def zero_masked(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """`tokens` with zeros where the mask is False.

    Args:
        tokens: (B, N, C) or (B, heads, N, d). Even NaN in a masked place does not survive.
        mask: (B, N), or None for all valid.
    """
    if mask is None:
        return tokens
    valid = mask.unsqueeze(-1) if tokens.ndim == 3 else mask[:, None, :, None]
    return tokens.masked_fill(~valid, 0)


def count_valid(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """How many of the tokens (B, ..., N, d) of each picture are valid: (B,), in their dtype."""
    if mask is None:
        return torch.full((tokens.shape[0],), tokens.shape[-2], dtype=tokens.dtype, device=tokens.device)
    return mask.sum(1).to(tokens.dtype)


def mean_valid(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """The mean of the valid tokens: (B, N, C), zero where masked, -> (B, C) in fp32 or better; zero where none is valid."""
    dtype = torch.promote_types(tokens.dtype, torch.float32)
    if mask is None:
        return tokens.mean(1, dtype=dtype)
    return tokens.sum(1, dtype=dtype) / mask.sum(1, keepdim=True).clamp(min=1)
