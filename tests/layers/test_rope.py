"""Rotary positions on every mixer: the definition written out with loops, the dense rows, windows, bands, graphs, errors."""

from functools import partial
from math import cos, prod, sin

import pytest
import torch

from inline_attention import MIXERS, InLineAttention
from inline_attention.layers import Block
from inline_attention.layers.bands import bands_of, respond_in_bands, split_rows, summarize_in_bands
from inline_attention.layers.rope import RotaryPositions, Rotation
from inline_attention.ops.shifted_windows import Window

from ..dense_form import dense_forward
from .test_mixer_graphs import OnImages, check_compiled
from .test_mixers import assert_same
from .variants import CROSS, RIVALS, ROTARY, build, random_mask


def turned_by_hand(x, grid, heads, kind, prefix=0):
    """(N, C) of one image, turned pair by pair: MALA's angles for "heads", MILA's for "all"."""
    dim, sides = x.shape[1], len(grid)
    width = dim // heads if kind == "heads" else dim
    count = width // (2 * sides)
    spread = max(1, count - 1) if kind == "heads" else count
    places = [torch.unravel_index(torch.tensor(token), grid) for token in range(prod(grid))]
    out = x.clone()
    for token, place in enumerate(places):
        for pair in range(dim // 2):
            side, m = divmod(pair % (width // 2), count)
            angle = float(place[side]) * 10000.0 ** (-m / spread)
            a, b = x[prefix + token, 2 * pair], x[prefix + token, 2 * pair + 1]
            out[prefix + token, 2 * pair] = a * cos(angle) - b * sin(angle)
            out[prefix + token, 2 * pair + 1] = b * cos(angle) + a * sin(angle)
    return out


def by_hand(name, mixer, x, grid, kind, prefix=0):
    """One image (N, C) through the mixer, written out; turned queries and keys enter the numerators only."""
    heads, dim = mixer.num_heads, mixer.dim
    q = mixer.q(x)
    k, v = mixer.kv(x).chunk(2, -1)

    def turned(tokens):
        return turned_by_hand(tokens, grid, heads, kind, prefix)

    def each(function, *tokens):
        by_head = (tensor.unflatten(1, (heads, -1)).unbind(1) for tensor in tokens)
        return torch.cat([function(*parts) for parts in zip(*by_head, strict=True)], 1)

    scale = (dim // heads) ** -0.5
    if name == "softmax":
        out = each(lambda q, k, v: (q @ k.T * scale).softmax(1) @ v, turned(q), turned(k), v)
    elif name == "inline":
        q, k = turned(mixer.kernel(q)), turned(mixer.kernel(k))

        def head(q, k, v):
            weights = q @ k.T * scale / len(k)
            return (weights - weights.mean(1, keepdim=True) + 1 / len(k)) @ v

        out = each(head, q, k, v)
    elif name in ("linear", "enhanced"):
        q, k = q.relu(), k.relu()

        def head(rq, rk, q, k, v):
            return rq @ rk.T / ((q @ k.T).sum(1, keepdim=True) + len(k) * 1e-6) @ v

        out = each(head, turned(q), turned(k), q, k, v)
    else:
        assert name == "efficient"
        q = each(lambda q: q.softmax(1), q)
        out = each(lambda q, k, v: q @ k.T @ v, turned(q), turned(k.softmax(0)), v)
    return mixer.proj(out)


@pytest.mark.parametrize(("name", "options"), [v for v in ROTARY if v.values[0] not in ("angular", "focused", *RIVALS)])
@pytest.mark.parametrize(("grid", "prefix"), [((3, 5), 1), ((7,), 2), ((2, 3, 2), 0)])
def test_the_definition(name, options, grid, prefix):
    mixer = build(name, 24, 2, grid_dims=len(grid), **options)
    x = torch.randn(2, prefix + prod(grid), 24, dtype=torch.float64, requires_grad=True)
    theirs = torch.stack([by_hand(name, mixer, image, grid, options["rope"], prefix) for image in x])
    assert_same(mixer, mixer(x, grid, num_prefix_tokens=prefix), theirs, [x])
    assert not torch.allclose(theirs, build_plain(name, mixer, options, x, grid, prefix), atol=1e-4)


def build_plain(name, mixer, options, x, grid, prefix):
    plain = build(name, 24, 2, grid_dims=len(grid), **{**options, "rope": None})
    plain.load_state_dict(mixer.state_dict())
    return plain(x, grid, num_prefix_tokens=prefix)


@pytest.mark.parametrize(("name", "options"), [v for v in ROTARY if MIXERS[v.values[0]].is_weighted_sum])
@pytest.mark.parametrize(
    ("grid", "prefix", "masked"), [((14, 9), 0, False), ((3, 2), 3, True), ((1, 7), 1, True), ((9,), 1, True)]
)
def test_equals_its_dense_reference(name, options, grid, prefix, masked):
    mixer = build(name, grid_dims=len(grid), **options)
    x = torch.randn(3, prefix + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    call = {"num_prefix_tokens": prefix, "mask": random_mask(3, x.shape[1]) if masked else None}
    assert_same(mixer, mixer(x, grid, **call), dense_forward(mixer, x, grid, **call), [x])


@pytest.mark.parametrize(("name", "options"), ROTARY)
def test_no_parameter_is_added_and_a_token_alone_is_not_turned(name, options):
    mixer, plain = build(name, **options), build(name, **{**options, "rope": None})
    plain.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    where = {"num_prefix_tokens": 3}  # one token on the grid, at position 0
    torch.testing.assert_close(mixer(x, (1, 1), **where), plain(x, (1, 1), **where))
    assert not torch.allclose(mixer(x, (2, 2)), plain(x, (2, 2)), atol=1e-4)
    if name in CROSS:
        context = torch.randn(2, 5, 8, dtype=torch.float64)
        torch.testing.assert_close(mixer(x, (2, 2), context=context), plain(x, context=context))


@pytest.mark.parametrize("name", ["softmax", "inline"])
def test_only_distances_count(name):
    """A row of tokens, and the same further down, on a grid where no other token is valid."""
    mixer = build(name, 16, 2, local=False, rope="heads")
    x, mask = torch.zeros(1, 12 * 5, 16, dtype=torch.float64), torch.zeros(1, 60, dtype=torch.bool)
    tokens, outs = torch.randn(5, 16, dtype=torch.float64), []
    for row in (0, 7):
        here = slice(5 * row, 5 * row + 5)
        moved, valid = x.clone(), mask.clone()
        moved[0, here], valid[0, here] = tokens, True
        outs.append(mixer(moved, (12, 5), mask=valid)[0, here])
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [v for v in ROTARY if "windows" not in MIXERS[v.values[0]].refuses])
@pytest.mark.parametrize(
    "windows", [(Window(3, 4),), (Window(None, 2), Window(3, None)), (Window(4, 4, shifted=True),)], ids=str
)
def test_in_windows(name, options, windows):
    """Each window is an image; the dense rows agree, padded and rolled windows included."""
    mixer = build(name, windows=windows, **options)
    x = torch.randn(2, 42, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, (6, 7)), dense_forward(mixer, x, (6, 7)), rtol=1e-10, atol=1e-10)
    if windows == (Window(3, 4),):
        whole = build(name, **options)
        whole.load_state_dict(mixer.state_dict())
        image = x.unflatten(1, (6, 7))[:, 3:, :4]
        here = mixer(x, (6, 7)).unflatten(1, (6, 7))[:, 3:, :4]
        torch.testing.assert_close(here.flatten(1, 2), whole(image.flatten(1, 2), (3, 4)))


@pytest.mark.parametrize("name", ["softmax", "inline", "linear"])
def test_heads_of_each_window_have_their_own_frequencies(name):
    """Two windows that are the whole map are no windows."""
    options = {"local": False, "rope": "all"}
    mixer, whole = build(name, windows=(Window(None, None),) * 2, **options), build(name, **options)
    whole.load_state_dict(mixer.state_dict())
    x = torch.randn(2, 42, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, (6, 7)), whole(x, (6, 7)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", ["identity", "relu"])
@pytest.mark.parametrize("rope", ["heads", "all"])
@pytest.mark.parametrize(("grid", "tokens"), [((7, 5), 10), ((9,), 4), ((4, 2, 3), 6)])
def test_bands_count_rows_from_the_top(kernel, rope, grid, tokens):
    mixer = InLineAttention(24, 2, kernel=kernel, rope=rope, grid_dims=len(grid), dtype=torch.float64).eval()
    x = torch.randn(2, 2 + prod(grid), 24, dtype=torch.float64)
    whole, rows, limits = mixer(x, grid, num_prefix_tokens=2), x[:, 2:].unflatten(1, grid), split_rows(grid, tokens)
    bands = partial(bands_of, rows, limits)
    summaries = summarize_in_bands(mixer, bands, x.device, prefix=x[:, :2])
    responses = [mixer.respond(x[:, :2], summaries)]
    responses += [response for _, response in respond_in_bands(mixer, bands(mixer.reach()), summaries, x.device)]
    torch.testing.assert_close(torch.cat(responses, 1), whole, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("options", "prefix", "bands"), [({}, 1, 4), ({"windows": [Window(7, 7)]}, 0, 0)], ids=str)
def test_a_block_takes_a_large_image_in_bands(monkeypatch, options, prefix, bands):
    """Without gradients, by per-head states; in windows as one."""
    from inline_attention.layers import block as module

    block = Block(InLineAttention(24, 2, rope="heads", **options)).double().eval()
    x = torch.randn(1, prefix + 12 * 5, 24, dtype=torch.float64)
    with torch.no_grad():
        whole = block(x, (12, 5), num_prefix_tokens=prefix)
        monkeypatch.setattr(module, "LARGE_IMAGE", 1)
        monkeypatch.setattr(module, "BAND_TOKENS", 20)
        calls = []
        respond = Block.respond
        monkeypatch.setattr(Block, "respond", lambda *a, **k: (calls.append(1), respond(*a, **k))[1])
        torch.testing.assert_close(block(x, (12, 5), num_prefix_tokens=prefix), whole, rtol=1e-11, atol=1e-11)
    assert len(calls) == bands


EXPORTED = ("inline-heads", "linear-all")
"""In every run; the others only by `make slow`."""


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*v.values, id=v.id, marks=[] if v.id in EXPORTED else pytest.mark.slow) for v in ROTARY],
)
def test_export_with_dynamic_batch_and_grid(name, options):
    model = OnImages(build(name, dtype=torch.float32, **options))
    batch, height, width = (torch.export.Dim(side, min=1, max=4096) for side in ("batch", "height", "width"))
    exported = torch.export.export(
        model, (torch.randn(2, 8, 5, 6),), dynamic_shapes=({0: batch, 2: height, 3: width},)
    ).module()
    for shape in ((1, 8, 14, 9), (3, 8, 2, 31)):
        image = torch.randn(shape)
        torch.testing.assert_close(exported(image), model(image), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "inline"])
def test_compiled(name):
    check_compiled(name, {"rope": "heads", "local": True}, "aot_eager")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "inline", "linear"])
def test_half_precision_has_angles_in_fp32(name, dtype):
    """At the end of a long row, where a position in half precision would be off by whole tokens."""
    mixer = build(name, 16, 2, dtype=torch.float32, local=False, rope="heads", grid_dims=1)
    x, at = torch.randn(1, 5000, 16), [4990, 4999]
    q, k, _ = mixer.project(x, (5000,))
    low = mixer.to(dtype)
    for ours, theirs in zip(low.project(x.to(dtype), (5000,))[:2], (q, k), strict=True):
        torch.testing.assert_close(ours[:, :, at].float(), theirs[:, :, at], rtol=0.05, atol=0.05)
    assert low.own_rotation(x.to(dtype), (5000,)).keys.dtype is torch.float32


def test_a_table_of_ones_own():
    """Half-split pairs, prefix tokens as they are, before the kernel: DINOv3's."""
    mixer = build("linear", 16, 2)
    angles = torch.randn(6, 4, dtype=torch.float64).tile(2)
    table = torch.cat([angles.sin(), angles.cos()], -1)
    x = torch.randn(2, 8, 16, dtype=torch.float64, requires_grad=True)
    rotation = Rotation.from_table(table, num_prefix_tokens=2, half=True)

    def turned(heads):
        on_grid = heads[:, :, 2:]
        a, b = on_grid.chunk(2, -1)
        return torch.cat([heads[:, :, :2], on_grid * angles.cos() + torch.cat([-b, a], -1) * angles.sin()], 2)

    q, k, v = mixer.project(x)
    q, k = turned(q).relu(), turned(k).relu()
    weights = q @ k.mT
    expected = mixer.proj(mixer.merge_heads(weights / (weights.sum(-1, keepdim=True) + 8e-6) @ v))
    torch.testing.assert_close(mixer(x, rotation=rotation), expected, rtol=1e-10, atol=1e-10)
    rows = mixer.attention_rows(x, None, [0, 5], rotation=rotation).mixed
    torch.testing.assert_close(rows @ v, (weights / (weights.sum(-1, keepdim=True) + 8e-6) @ v)[:, :, [0, 5]])


def test_the_per_head_form_is_chosen():
    mixer = InLineAttention(8, 2, rope="heads", local=False)
    x = torch.randn(1, 30, 8)
    assert not mixer.folds(x)
    plain = InLineAttention(8, 2, local=False)
    assert plain.folds(x)
    table = torch.zeros(30, 8)
    table[:, 4:] = 1  # angles of 0: the folded form must not have been taken for other angles either
    torch.testing.assert_close(plain(x, rotation=Rotation.from_table(table)), plain(x), rtol=1e-4, atol=1e-5)
    half_turn = Rotation.from_table(torch.cat([table[:, :4], -table[:, 4:] * (torch.arange(30) % 2 * 2 - 1)[:, None]], -1))
    assert not torch.allclose(plain(x, rotation=half_turn), plain(x), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rope": "rows"}, "unknown rope 'rows'; known: heads, all"),
        ({"rope": "heads", "num_heads": 4}, "rope='heads' turns pairs of channels for each of 2 sides: 4 heads of 2 channels"),
        ({"rope": "heads", "grid_dims": 3}, "for each of 3 sides: 2 heads of 4 channels cannot be shared evenly"),
        ({"rope": "all", "num_heads": 8}, "rope='all' turns pairs of channels for each of 2 sides: 8 heads of 1 channels"),
        ({"rope": "heads", "reduction": 2}, "rope='heads' needs keys on the grid of the queries, got .*, reduction=2"),
        ({"rope": "all", "context_dim": 6}, "rope='all' needs keys on the grid of the queries, got context_dim=6"),
        (
            {"rope": "heads", "form": "folded"},
            "the folded form needs the identity kernel, base='mean', no qk_norm and no rope, got",
        ),
    ],
)
def test_what_cannot_be_made(options, said):
    with pytest.raises(ValueError, match=said):
        InLineAttention(8, **{"num_heads": 2, **options})


def test_hydra_has_no_pairs():
    with pytest.raises(ValueError, match="HydraAttention multiplies channel by channel and takes no rope, got 'heads'"):
        MIXERS["hydra"](8, 2, rope="heads")


def test_calls_that_cannot_be():
    x, rotation = torch.randn(1, 12, 8), Rotation.from_table(torch.ones(12, 8))
    with pytest.raises(ValueError, match="has rotary positions: pass the grid, such as"):
        InLineAttention(8, 2, rope="heads", local=False)(x)
    with pytest.raises(ValueError, match="this layer has rope of its own and takes no rotation"):
        InLineAttention(8, 2, rope="heads")(x, (3, 4), rotation=rotation)
    with pytest.raises(ValueError, match="this layer reads a context and takes no rotation"):
        InLineAttention(8, 2)(x, (3, 4), rotation=rotation, context=x)
    with pytest.raises(ValueError, match="no prefix tokens, no context and no rotation"):
        InLineAttention(8, 2, windows=(Window(2, 2),))(x, (3, 4), rotation=rotation)
    with pytest.raises(ValueError, match="the folded form makes no queries to turn"):
        InLineAttention(8, 2, form="folded")(x, (3, 4), rotation=rotation)


def test_positions_are_printed():
    assert "rope=all" in repr(InLineAttention(8, 2, rope="all"))
    assert InLineAttention(8, 2, rope="all").rope == RotaryPositions("all", 2, 4, 2)
