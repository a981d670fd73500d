"""The loop over bands, and what mixers say about working on parts of an image."""

from functools import partial
from math import exp, prod

import pytest
import torch

from inline_attention import MIXERS, InLineAttention
from inline_attention.layers import Block
from inline_attention.layers.bands import bands_of, respond_in_bands, split_rows, summarize_in_bands
from inline_attention.layers.summary import Summary
from inline_attention.ops.shifted_windows import Window

from .variants import ROTARY, VARIANTS, build


@pytest.mark.parametrize(
    ("grid", "tokens", "limits"),
    [
        ((5, 4), 8, [(0, 2), (2, 4), (4, 5)]),
        ((3, 4), 1, [(0, 1), (1, 2), (2, 3)]),
        ((3, 4), 10**6, [(0, 3)]),
        ((4,), 3, [(0, 3), (3, 4)]),
        ((3, 2, 2), 8, [(0, 2), (2, 3)]),
    ],
)
def test_bands_have_whole_rows(grid, tokens, limits):
    assert split_rows(grid, tokens) == limits


@pytest.mark.parametrize("reach", [(0, 0), (1, 1), (1, 2), (3, 0), (7, 7)])
@pytest.mark.parametrize("tokens", [1, 6, 9, 100])
def test_neighbours_are_kept_before_they_are_overwritten(reach, tokens):
    rows = torch.arange(11.0).view(1, 11, 1, 1).expand(2, 11, 3, 4).clone()
    limits = split_rows((11, 3), tokens)
    expected = [(band.start, band.stop, band.rows.clone(), band.halo) for band in bands_of(rows.clone(), limits, reach)]
    found = []
    for band in bands_of(rows, limits, reach, overwritten=True):
        found.append((band.start, band.stop, band.rows.clone(), band.halo))
        rows[:, band.start : band.stop] = -1
    for (*ours, halo), (*theirs, same_halo) in zip(found, expected, strict=True):
        assert ours[:2] == theirs[:2]
        assert halo == same_halo
        assert torch.equal(ours[2], theirs[2])
    start, stop, around, halo = found[0]
    assert around.shape[1] == halo[0] + stop - start + halo[1]
    assert halo[0] == 0


@pytest.mark.parametrize("reach", [(0, 0), (1, 1), (3, 2)])
def test_rows_that_are_left_out_are_read_as_they_are(reach):
    rows = torch.arange(14.0).view(1, 14, 1, 1).clone()
    limits, before = [(1, 3), (4, 5), (5, 6), (9, 11)], rows.clone()
    for band in bands_of(rows, limits, reach, overwritten=True, mask=torch.arange(14).view(1, 14, 1) > 2):
        first, last = band.start - band.halo[0], band.stop + band.halo[1]
        assert (first, last) == (max(0, band.start - reach[0]), min(14, band.stop + reach[1]))
        assert torch.equal(band.rows, before[:, first:last])
        assert band.mask.flatten().tolist() == [row > 2 for row in range(first, last)]
        assert band.place == (first, 14, band.halo)
        rows[:, band.start : band.stop] = -1


NOT_IN_BANDS = ({"form": "folded"}.items(), {"divisor": "published"}.items())
"""The folded form refuses rotary positions; the published divisor of MHLA needs a number of every token."""
IN_BANDS = [
    v
    for v in [*VARIANTS, *ROTARY]
    if v.values[0] not in ("softmax", "angular") and not any(one <= v.values[1].items() for one in NOT_IN_BANDS)
]


GRIDS = pytest.mark.parametrize(("grid", "rows", "masked"), [((7, 5), 2, False), ((9, 4), 1, True), ((6,), 4, True)])


@GRIDS
@pytest.mark.parametrize(
    ("name", "options", "cpe"),
    [
        ("mala", {"gate": True, "lepe": 5}, True),
        ("inline", {"local": True}, "both"),
        ("enhanced", {"local": True}, "both"),
        ("nala", {"out_norm": True, "gate": "silu"}, "both"),
        ("vit3", {}, True),
        ("agent", {"lepe": 3}, True),
    ],
)
def test_bands_have_the_parts_of_the_block_too(name, options, cpe, grid, rows, masked):
    """Convolutional positions are before the sums; LePE, gate and norm after what is read."""
    check_bands(name, options, grid, rows, masked, cpe=cpe)


@pytest.mark.parametrize(("name", "options"), IN_BANDS)
@GRIDS
def test_bands_give_what_the_whole_gives(name, options, grid, rows, masked):
    """Through a block, with class tokens and garbage under the mask: outputs, and gradients of tokens and parameters."""
    check_bands(name, options, grid, rows, masked)


def check_bands(name, options, grid, rows, masked, **around):
    torch.manual_seed(0)
    mixer = build(name, grid_dims=len(grid), **{**options, "rope": options.get("rope") if len(grid) == 2 else None})
    block = Block(mixer, raw_local=rows == 2, **around).double().eval()
    x = torch.randn(2, 2 + prod(grid), 8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, x.shape[1]) > 0.4 if masked else torch.ones(2, x.shape[1], dtype=torch.bool)
    mask[:, :2] = True
    given = x.masked_fill(~mask.unsqueeze(-1), float("nan"))
    whole = block(given, grid, num_prefix_tokens=2, mask=mask if masked else None)
    prefix, image, valid = given[:, :2], given[:, 2:].unflatten(1, grid), mask[:, 2:].unflatten(1, grid)
    bands = partial(bands_of, image, split_rows(grid, rows * prod(grid[1:])), mask=valid if masked else None)
    summaries = summarize_in_bands(block, bands, x.device, prefix=prefix)
    two = name in ("rala", "agent") or (name == "efficient" and mixer.rope is not None)
    assert len(summaries) == mixer.sweeps == (2 if two else 1)
    responses = [response for _, response in respond_in_bands(block, bands(block.reach()), summaries, x.device)]
    banded = torch.cat([block.respond(prefix, summaries), *responses], 1)
    torch.testing.assert_close(banded[mask], whole[mask], rtol=1e-10, atol=1e-10)
    inputs, slope = [x, *block.parameters()], torch.randn_like(whole)[mask]
    ours, plain = (
        torch.autograd.grad((out[mask] * slope).sum(), inputs, retain_graph=True, allow_unused=True) for out in (banded, whole)
    )
    for a, b in zip(ours, plain, strict=True):
        a, b = (torch.zeros(()) if gradient is None else gradient for gradient in (a, b))
        torch.testing.assert_close(a.expand_as(b), b.expand_as(a), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in MIXERS if n not in ("softmax", "angular")])
def test_an_image_without_valid_tokens_is_finite_in_bands(name):
    mixer = build(name)
    x, mask = torch.randn(1, 12, 8, dtype=torch.float64), torch.zeros(1, 12, dtype=torch.bool)
    none, all_of_it = (), ()
    for _ in range(mixer.sweeps):
        empty = mixer.summarize(x, (3, 4), mask=mask, before=none)
        none = (*none, empty + empty)
        some, also_empty = (mixer.summarize(x, (3, 4), mask=given, before=all_of_it) for given in (None, mask))
        for ours, theirs in zip((also_empty + some).tensors(), some.tensors(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        all_of_it = (*all_of_it, some)
    assert mixer.respond(x, none, (3, 4), mask=mask).isfinite().all()


def test_sums_of_exponentials_are_added_on_one_scale():
    """1000 apart, where exp would overflow; the parts on the total's scale add up to the total."""
    parts = [
        Summary(torch.ones(1), torch.zeros(1, 2), (torch.tensor([[2.0, 3.0]]), torch.ones(1, 2, 4)), torch.tensor([[low, 5.0]]))
        for low in (-1000.0, 0.0, 0.5)
    ]
    total = parts[0] + parts[1] + parts[2]
    torch.testing.assert_close(total.sums[0], torch.tensor([[2 * exp(-0.5) + 2, 9.0]]))
    assert total.maximum.tolist() == [[0.5, 5.0]]
    scaled = [part.on_scale(total.maximum).tensors() for part in parts]
    for number, tensor in enumerate(total.tensors()):
        torch.testing.assert_close(sum(part[number] for part in scaled), tensor)
    assert total.numel() == 1 + 2 + 2 + 8 + 2


def test_a_mixer_responds_like_a_block():
    """The loop takes either."""
    mixer = InLineAttention(8, 2, dtype=torch.float64).eval()
    x = torch.randn(2, 35, 8, dtype=torch.float64)
    bands = partial(bands_of, x.unflatten(1, (7, 5)), split_rows((7, 5), 10))
    summaries = summarize_in_bands(mixer, bands, x.device)
    responses = [response for _, response in respond_in_bands(mixer, bands(mixer.reach()), summaries, x.device)]
    torch.testing.assert_close(torch.cat(responses, 1), mixer(x, (7, 5)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MIXERS)
def test_only_some_mixers_work_in_bands(name):
    """Not softmax, and not angular, whose nine taps along the token axis cross the ends of rows."""
    mixer = MIXERS[name](8, 2)
    assert mixer.works_in_bands == (name not in ("softmax", "angular"))
    if name == "softmax":
        x = torch.zeros(1, 6, 8)
        assert not mixer.prefers_bands(x)
        with pytest.raises(NotImplementedError, match="SoftmaxAttention does not work in bands"):
            mixer.summarize(x)
        with pytest.raises(NotImplementedError, match="SoftmaxAttention does not work in bands"):
            mixer.respond(x, ())
    if not mixer.works_in_bands:
        with pytest.raises(ValueError, match=rf"{type(mixer).__name__} does not work in bands \(its works_in_bands is False\)"):
            Block(mixer).summarize(torch.zeros(1, 6, 8))
    assert not MIXERS["mhla"](8, 2, divisor="published").works_in_bands


@pytest.mark.parametrize("options", [{"windows": (Window(2, 2),)}, {"reduction": 2}, {"context_dim": 8}], ids=str)
def test_inline_works_in_bands_over_the_whole_map_only(options):
    assert not InLineAttention(8, 2, **options).works_in_bands


@pytest.mark.parametrize(
    ("options", "reach"),
    [
        ({}, (1, 1)),
        ({"local": False}, (0, 0)),
        ({"local": False, "lepe": True}, (1, 1)),
        ({"local_size": (5, 3)}, (2, 2)),
        ({"local_size": (4, 3)}, (1, 2)),
    ],
)
def test_reach_is_that_of_the_largest_kernel(options, reach):
    mixer = InLineAttention(8, 2, **options)
    assert mixer.reach() == Block(mixer).reach() == reach


def test_an_unknown_part_is_an_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
        InLineAttention(8, 2, window=7)
