"""Every mistake ends in one sentence that says what was wrong, with which value."""

import pytest
import torch

from inline_attention import MIXERS
from inline_attention.ops.shifted_windows import Window

from .variants import VARIANTS, build


class TestErrors:
    """Each says what was wrong, with which value."""

    @pytest.mark.parametrize("name", MIXERS)
    def test_heads_that_do_not_divide(self, name):
        with pytest.raises(ValueError, match="dim=10 cannot be divided into num_heads=4 heads of equal size"):
            MIXERS[name](10, 4)

    def test_unknown_mixer(self):
        with pytest.raises(
            ValueError, match="unknown mixer 'sigmoid'; known: inline, softmax, linear, efficient, hydra, angular"
        ):
            MIXERS["sigmoid"]

    @pytest.mark.parametrize("name", MIXERS)
    @pytest.mark.parametrize(
        ("shape", "call", "message"),
        [
            ((2, 12), {}, r"x must be \(batch, tokens, channels\), got \(2, 12\)"),
            ((2, 0, 8), {"grid": None}, r"x has no tokens: \(2, 0, 8\)"),
            ((2, 12, 6), {}, "x has 6 channels, the layer was built for 8"),
            ((2, 13, 8), {}, r"grid \(3, 4\) has 12 tokens, and with num_prefix_tokens=0 that is not the 13"),
            ((2, 12, 8), {"num_prefix_tokens": 2}, "with num_prefix_tokens=2 that is not the 12"),
            ((2, 12, 8), {"num_prefix_tokens": -1}, "num_prefix_tokens must not be negative, got -1"),
            ((2, 12, 8), {"grid": 12}, r"grid must be a tuple of 1, 2 or 3 whole numbers, such as \(H, W\), got 12"),
            ((2, 12, 8), {"grid": (3.0, 4.0)}, r"whole numbers, such as \(H, W\), got \(3.0, 4.0\)"),
            ((2, 12, 8), {"grid": (-3, -4)}, r"every side of the grid must be at least 1, got \(-3, -4\)"),
            ((2, 12, 8), {"grid": (12,)}, r"grid \(12,\) has 1 sides, the layer has grid_dims=2"),
            ((2, 12, 8), {"mask": torch.ones(2, 11, dtype=torch.bool)}, r"= \(2, 12\) over the keys, got \(2, 11\)"),
            ((2, 12, 8), {"mask": torch.ones(2, 12)}, r"mask must be a boolean tensor, .* got torch.float32"),
            ((2, 12, 8), {"mask": [True]}, r"mask must be a boolean tensor, .* got \[True\]"),
            ((2, 12, 8), {"context": torch.ones(3, 5, 8)}, "x has a batch of 2, context of 3"),
            ((2, 12, 8), {"context": torch.ones(2, 5, 7)}, "context has 7 channels, the layer was built for 8"),
        ],
    )
    def test_call(self, name, shape, call, message):
        call = {"grid": (3, 4), **call}
        if "context" in call and "context" in MIXERS[name].refuses:
            message = f"{MIXERS[name].__name__} reads no context: {MIXERS[name].refuses['context']}"
        with pytest.raises(ValueError, match=message):
            MIXERS[name](8, 2)(torch.zeros(shape), **call)

    @pytest.mark.parametrize(("name", "options"), VARIANTS)
    def test_a_local_part_needs_a_grid(self, name, options):
        mixer = build(name, dtype=torch.float32, **options)
        if part := "a local part" if mixer.local_parts() else mixer.needs_grid:
            with pytest.raises(ValueError, match=rf"has {part}: pass the grid, .* that its 12 tokens lie on"):
                mixer(torch.zeros(2, 12, 8))
        else:
            assert mixer(torch.zeros(2, 12, 8)).shape == (2, 12, 8)

    def test_a_context_layer_needs_a_context(self):
        with pytest.raises(ValueError, match="reads a context of 6 channels: pass context="):
            MIXERS["softmax"](8, 2, context_dim=6)(torch.zeros(2, 12, 8))

    @pytest.mark.parametrize(
        ("queries", "message"),
        [
            ([12], r"queries \[12\] are not all within the 12"),
            ([-1], "not all within"),
            ([], r"must be a list of token indices, got \[\]"),
            ([0.5], "must be a list of token indices"),
            ([True], "must be a list of token indices"),
        ],
    )
    def test_queries(self, queries, message):
        with pytest.raises(ValueError, match=message):
            MIXERS["inline"](8, 2).attention_rows(torch.zeros(2, 12, 8), (3, 4), queries)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"kernel": "cosine"}, "unknown kernel 'cosine'; known: identity, relu, relu_affine, leaky_relu, exp"),
            ({"kernel": None}, r"kernel must be a name \(identity, relu, .*\) or a function, got None"),
            ({"context_dim": 0}, "context_dim must be at least 1, got 0"),
            ({"form": "fast"}, "unknown form 'fast'; known: auto, folded, heads"),
            (
                {"form": "folded", "kernel": "relu"},
                "the folded form needs the identity kernel, base='mean', no qk_norm and no rope, got kernel='relu'",
            ),
            ({"form": "folded", "base": "linear"}, "the folded form needs the identity kernel, base='mean', .* base='linear'"),
            ({"base": "token"}, "unknown base 'token'; known: mean, linear"),
            ({"scale": "free"}, "scale must be a number, 'learned' or None, and start_scale is for 'learned': scale='free'"),
            ({"start_scale": 4.0}, "start_scale is for 'learned': scale=None, start=4.0"),
            (
                {"scale": "learned", "windows": (Window(None, 2), Window(2, None))},
                "scale='learned' is one number for each head: heads cannot share 2 windows",
            ),
            ({"attn_drop": 1.0}, r"attn_drop must be in \[0, 1\), got 1.0"),
            ({"grid_dims": 4}, "grid_dims must be 1, 2 or 3, got 4"),
            ({"local_size": (3, 3, 3)}, r"kernel size \(3, 3, 3\) does not fit a grid of 2 sides"),
            ({"local_size": 0}, "kernel size 0 does not fit"),
        ],
    )
    def test_construction(self, options, message):
        with pytest.raises(ValueError, match=message):
            MIXERS["inline"](8, 2, **options)

    @pytest.mark.parametrize(
        ("x", "error", "message"),
        [
            (None, TypeError, "x must be a tensor, got None"),
            (torch.zeros(1, 4, 8).long(), ValueError, "x must hold floating-point numbers, got torch.int64"),
            (torch.zeros(1, 4, 8).double(), ValueError, "x is torch.float64, and the weights are torch.float32"),
            (torch.zeros(1, 4, 8).to_sparse(), ValueError, "x must be a dense tensor, got one of layout torch.sparse_coo"),
            (torch.zeros(1, 4, 8, device="meta"), ValueError, "x is on meta, and the weights are on cpu"),
        ],
    )
    def test_wrong_tensors(self, x, error, message):
        with pytest.raises(error, match=message):
            MIXERS["inline"](8, 2)(x, (2, 2))
