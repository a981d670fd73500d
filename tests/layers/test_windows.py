"""Every mixer in windows, in stripes, with LePE, with reduced keys: against the same thing token by token."""

from math import sqrt

import pytest
import torch
import torch.nn.functional as F

from inline_attention import MIXERS
from inline_attention.layers import Block
from inline_attention.layers.local_residual import add_local
from inline_attention.layers.softmax import PositionBias, resample_table
from inline_attention.ops.shifted_windows import Window

from ..dense_form import dense_forward
from ..formulas import FORMULAS
from .variants import CROSS, WINDOWED, build

SHIFTED = (Window(4, 3, shifted=True),)
STRIPES = (Window(None, 2), Window(2, None))


def by_window(grid, window):
    """Token -> (window, place in it, region), by the definition."""
    out = {}
    for row in range(grid[0]):
        for column in range(grid[1]):
            number, place, region = [], [], []
            for at, side, size in zip((row, column), grid, (window.height, window.width), strict=True):
                size = side if size is None else min(size, side)
                shift = size // 2 if window.shifted and side > size else 0
                rolled = (at - shift) % (-(-side // size) * size)
                number.append(rolled // size)
                place.append(rolled % size)
                region.append(at < shift)
            out[row * grid[1] + column] = (tuple(number), tuple(place), tuple(region))
    return out


def token_by_token(name, mixer, x, grid, local_input=None):
    """A windowed mixer from raw weights: nothing is partitioned, rolled or padded."""
    local_input = x if local_input is None else local_input
    q, (k, v) = mixer.q(x), mixer.kv(x).chunk(2, -1)
    share = mixer.dim // len(mixer.windows)
    out = torch.zeros_like(x)
    for b in range(x.shape[0]):
        for g, window in enumerate(mixer.windows):
            mine = slice(g * share, (g + 1) * share)
            place = by_window(grid, window)
            for number in {p[0] for p in place.values()}:
                tokens = sorted((t for t, p in place.items() if p[0] == number), key=lambda t, place=place: place[t][1])
                out[b, tokens, mine] += local_parts(mixer, v[b], local_input[b, tokens].mean(0), tokens, place, mine)
                for some in apart(tokens, place) if name == "softmax" else [tokens]:
                    q_s, k_s, v_s = (z[b, some, mine] for z in (q, k, v))
                    if name == "softmax":
                        out[b, some, mine] += softmax_heads(mixer, q_s, k_s, v_s, [place[t][1] for t in some])
                    else:
                        out[b, some, mine] += FORMULAS[name](q_s, k_s, v_s, mixer.num_heads // len(mixer.windows))
    return mixer.proj(out)


def apart(tokens, place):
    """The regions of a window, each a list of tokens."""
    regions = {place[t][2] for t in tokens}
    return [[t for t in tokens if place[t][2] == region] for region in regions]


def softmax_heads(mixer, q, k, v, places):
    outs = []
    for h, (q_h, k_h, v_h) in enumerate(zip(*(z.split(mixer.head_dim, 1) for z in (q, k, v)), strict=True)):
        logits = q_h @ k_h.T / sqrt(mixer.head_dim)
        if mixer.position is not None:
            at = torch.tensor(places)
            dy, dx = (at[:, None] - at[None]).unbind(-1)
            height, width = mixer.position.window
            logits = logits + mixer.position.table[dy + height - 1, dx + width - 1, h]
        outs.append(logits.softmax(1) @ v_h)
    return torch.cat(outs, 1)


def local_parts(mixer, v, mean, tokens, place, mine):
    """LePE and the local residual on a canvas as large as the window."""
    rows, columns = (torch.tensor([place[t][1][axis] for t in tokens]) for axis in (0, 1))
    canvas = v.new_zeros(mixer.dim, rows.max() + 1, columns.max() + 1)
    canvas[:, rows, columns] = v[tokens].T
    added = torch.zeros_like(canvas)
    if mixer.lepe is not None:
        added = added + F.conv2d(canvas, mixer.lepe.weight.unsqueeze(1), mixer.lepe.bias, padding=1, groups=mixer.dim)
    if mixer.local is not None:
        kernels = mixer.local.kernels(mean.unsqueeze(0))[0].unsqueeze(1)
        added = added + F.conv2d(canvas, kernels, padding=1, groups=mixer.dim)
    return added[mine][:, rows, columns].T


PLAIN = ["inline", "softmax", "linear", "efficient", "hydra"]
"""Mixers whose only local parts are LePE and the local residual."""


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("lepe", [False, True])
@pytest.mark.parametrize("windows", [SHIFTED, STRIPES], ids=["shifted", "stripes"])
@pytest.mark.parametrize("grid", [(8, 6), (7, 5), (3, 2), (4, 7)])
def test_windows_equal_the_same_token_by_token(name, local, lepe, windows, grid):
    if name == "hydra" and windows is STRIPES:
        windows = STRIPES[:1]  # its length is over all channels that attend together
    mixer = build(name, local=local, lepe=lepe, windows=windows)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, grid), token_by_token(name, mixer, x, grid), rtol=1e-10, atol=1e-10)
    raw = torch.randn_like(x)
    ours = mixer(x, grid, local_input=raw)
    torch.testing.assert_close(ours, token_by_token(name, mixer, x, grid, raw), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("grid", [(8, 6), (7, 5), (3, 2)])
def test_relative_positions(grid):
    mixer = build("softmax", windows=SHIFTED, position_bias=True)
    torch.nn.init.normal_(mixer.position.table)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, grid), token_by_token("softmax", mixer, x, grid), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "options"), [v for v in WINDOWED if v.values[1].get("form") != "folded"])
@pytest.mark.parametrize("windows", [SHIFTED, STRIPES], ids=["shifted", "stripes"])
@pytest.mark.parametrize("grid", [(8, 6), (7, 5)])
def test_rows_are_what_windows_weigh(name, options, windows, grid):
    windows = windows[:1] if options.get("scale") == "learned" else windows  # one number for each head
    mixer = build(name, windows=windows, **options)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, grid), dense_forward(mixer, x, grid), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", ["folded", "heads"])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("prefix", [0, 2])
def test_lepe_and_a_raw_local_input_in_both_forms(form, local, prefix):
    """One convolution for all local parts (folded) against one for each."""
    mixer = build("inline", form=form, local=local, lepe=True)
    x, raw = torch.randn(2, 3, 2 + 35, 8, dtype=torch.float64)[:, :, 2 - prefix :]
    without = build("inline", form=form, local=False)
    without.load_state_dict(mixer.state_dict(), strict=False)
    v = F.linear(x, mixer.kv.weight[8:], mixer.kv.bias[8:])[:, prefix:]
    added = []
    for b in range(3):
        canvas = v[b].T.reshape(1, 8, 7, 5)
        kernels = mixer.lepe.weight + (mixer.local.kernels(raw[b].mean(0, keepdim=True))[0] if local else 0)
        added.append(F.conv2d(canvas, kernels.unsqueeze(1), mixer.lepe.bias, padding=1, groups=8)[0].flatten(1).T)
    expected = without(x, (7, 5), num_prefix_tokens=prefix)
    expected = expected + F.pad(torch.stack(added), (0, 0, prefix, 0)) @ mixer.proj.weight.T
    ours = mixer(x, (7, 5), num_prefix_tokens=prefix, local_input=raw)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_a_block_can_make_local_kernels_from_its_raw_input():
    block = Block(build("inline"), raw_local=True).double().eval()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    mixed = block.mixer(block.norm1(x), (3, 4), local_input=x)
    assert not torch.allclose(mixed, block.mixer(block.norm1(x), (3, 4)))
    expected = x + mixed
    torch.testing.assert_close(block(x, (3, 4)), expected + block.mlp(block.norm2(expected)))


@pytest.mark.parametrize("name", [name for name in CROSS if "reduction" not in MIXERS[name].refuses])
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("grid", [(8, 4), (7, 5), (1, 1)])
def test_reduced_keys_come_from_a_smaller_map(name, local, grid):
    mixer = build(name, reduction=2, local=local)
    if name == "pola":  # a context has no positions
        torch.nn.init.zeros_(mixer.positions)
    x = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    image = F.pad(x.mT.unflatten(2, grid), (0, grid[1] % 2, 0, grid[0] % 2))
    weight, bias = mixer.reduction.conv.weight, mixer.reduction.conv.bias
    smaller = F.conv2d(image, weight, bias, stride=2).flatten(2).mT
    smaller = F.layer_norm(smaller, (8,), mixer.reduction.norm.weight, mixer.reduction.norm.bias)
    plain = build(name, context_dim=8)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    expected = plain(x, context=smaller)
    parts = mixer.local_parts()
    if parts:
        values = mixer.project_keys_values(x)[1]
        if name == "pola":  # which convolves the reduced values, resampled: see the golden vectors
            values = mixer.local_values(x, plain.project_keys_values(smaller)[1], grid)
        local_sum = add_local(torch.zeros_like(x), parts, x.mean(1), values, grid)
        expected = expected + mixer.proj(local_sum) - mixer.proj(torch.zeros_like(x))
    torch.testing.assert_close(mixer(x, grid), expected, rtol=1e-10, atol=1e-10)
    rows = mixer.attention_rows(x, grid, [0])
    assert rows.mixed.shape[-1] == smaller.shape[1]


def test_a_table_is_resampled_and_cropped():
    bias = PositionBias((5, 3), 2)
    smaller = PositionBias((3, 3), 2)
    smaller.table.data = bias.table.data[2:-2]
    assert torch.equal(bias((3, 3)), smaller((3, 3)))
    larger = resample_table(bias.table.data, (7, 4))
    assert larger.shape == (13, 7, 2)
    torch.testing.assert_close(larger[6, 3], bias.table.data[4, 2], rtol=0, atol=5e-3)  # no distance stays no distance
    assert resample_table(bias.table, (5, 3)) is bias.table


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({"windows": (Window(2, 2),) * 3}, {}, "3 windows cannot share num_heads=2 heads evenly"),
        ({"windows": SHIFTED, "reduction": 2}, {}, "reduction must be at least 1, and 1 with windows, got 2"),
        ({"windows": SHIFTED, "grid_dims": 1}, {}, "windows and reduction need a map"),
        ({"windows": STRIPES, "position_bias": True}, {}, "position_bias needs one window of known size"),
        ({"lepe": True, "local_size": 5, "local": True}, {}, "local_size=5 needs local=True and lepe=False"),
        ({"windows": SHIFTED}, {"grid": None}, "a layer with windows or spatial reduction needs the grid"),
        ({"windows": SHIFTED}, {"num_prefix_tokens": 2}, "takes no prefix tokens, no context and no rotation"),
    ],
)
def test_mistakes_are_named(options, call, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        build("softmax", **options)(torch.randn(1, 6, 8, dtype=torch.float64), **{"grid": (2, 3), **call})
