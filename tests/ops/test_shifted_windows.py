"""Cutting maps into windows, by the definition: where does each token end up, and with whom."""

import pytest
import torch

from inline_attention.ops.shifted_windows import Window, cut, from_windows, regions, rows_from_windows, to_windows

GRIDS = [(1, 1), (7, 7), (5, 3), (8, 12), (9, 4), (3, 17)]
WINDOWS = [Window(4, 4), Window(4, 4, shifted=True), Window(3, 5, shifted=True), Window(None, 2), Window(2, None)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_there_and_back(grid, window):
    tokens = torch.randn(3, grid[0] * grid[1], 2)
    cuts = cut(grid, window)
    windows = to_windows(tokens, cuts)
    assert windows.shape == (3 * cuts.counts[0] * cuts.counts[1], cuts.size[0] * cuts.size[1], 2)
    assert torch.equal(from_windows(windows, cuts), tokens)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_every_token_is_where_the_definition_says(grid, window):
    """Row r of a padded map of P rows, rolled up by s, is row (r - s) mod P; windows cut that every w rows."""
    cuts = cut(grid, window)
    tokens = torch.arange(1, grid[0] * grid[1] + 1).view(1, -1, 1)
    found = to_windows(tokens, cuts).view(*cuts.counts, *cuts.size)
    region = regions(cuts, torch.device("cpu"))
    region = torch.zeros_like(found) if region is None else region.view_as(found)
    seen = 0
    for row in range(grid[0]):
        for column in range(grid[1]):
            place, wrapped = [], []
            for at, axis in ((row, 0), (column, 1)):
                size = (window.height, window.width)[axis]
                size = grid[axis] if size is None else min(size, grid[axis])
                shift = size // 2 if window.shifted and grid[axis] > size else 0
                rolled = (at - shift) % (-(-grid[axis] // size) * size)
                place.append((rolled // size, rolled % size))
                wrapped.append(at < shift)
            where = (place[0][0], place[1][0], place[0][1], place[1][1])
            assert found[where] == 1 + row * grid[1] + column
            assert region[where] == 2 * wrapped[0] + wrapped[1]
            seen += 1
    assert (region == -1).sum() == found.numel() - seen


def test_a_map_no_larger_than_the_window_is_one_unshifted_window():
    cuts = cut((5, 7), Window(7, 7, shifted=True))
    assert (cuts.size, cuts.shift, cuts.counts) == ((5, 7), (0, 0), (1, 1))
    assert cut((5, 8), Window(7, 7, shifted=True)).shift == (0, 3)


def test_rows_lie_on_the_tokens_of_their_window():
    cuts = cut((5, 6), Window(3, 4, shifted=True))
    weights = torch.rand(2 * 4, 2, 12, 12)
    v = torch.randn(2, 30, 1)
    rows = rows_from_windows(weights, cuts, torch.arange(30))
    direct = from_windows(weights[:, 0] @ to_windows(v, cuts), cuts)
    torch.testing.assert_close(rows[:, 0] @ v, direct)
    assert torch.equal(rows_from_windows(weights, cuts, torch.tensor([7, 3])), rows[:, :, [7, 3]])
