"""The loop over bands, and what mixers say about working on parts of an image."""

import pytest
import torch

from inline_attention import MIXERS, InLineAttention
from inline_attention.layers import Block
from inline_attention.layers.bands import bands_of, respond_in_bands, split_rows
from inline_attention.ops.shifted_windows import Window


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


def test_a_mixer_responds_like_a_block():
    """The loop takes either."""
    mixer = InLineAttention(8, 2, dtype=torch.float64).eval()
    x = torch.randn(2, 35, 8, dtype=torch.float64)
    bands = bands_of(x.unflatten(1, (7, 5)), split_rows((7, 5), 10), mixer.reach())
    responses = [response for _, response in respond_in_bands(mixer, bands, mixer.summarize(x), x.device)]
    torch.testing.assert_close(torch.cat(responses, 1), mixer(x, (7, 5)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", MIXERS)
def test_only_some_mixers_work_in_bands(name):
    mixer = MIXERS[name](8, 2)
    assert mixer.works_in_bands == (name == "inline")
    if not mixer.works_in_bands:
        x = torch.zeros(1, 6, 8)
        assert not mixer.prefers_bands(x)
        with pytest.raises(NotImplementedError, match=f"{type(mixer).__name__} does not work in bands"):
            mixer.summarize(x)
        with pytest.raises(ValueError, match=rf"{type(mixer).__name__} does not work in bands \(its works_in_bands is False\)"):
            Block(mixer).summarize(x)


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
