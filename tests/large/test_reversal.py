"""Going back over steps visits each once, from the last, with its input there, and computes as few again as was promised."""

import pytest

from inline_attention.large.reversal import go_back, kept_inputs, repeated


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("places", [0, 1, 2, 3, 6, 11, 20])
def test_each_step_once_with_its_input(steps, places):
    places = min(places, steps - 1)
    there, order, again, most = {4, *kept_inputs(4, 4 + steps, places)}, [], 0, 0
    assert len(there) == 1 + places

    def advance(start, stop):
        nonlocal again, most
        assert start in there
        there.add(stop)
        again += stop - start
        most = max(most, len(there))

    def backward(step):
        assert step in there
        order.append(step)

    go_back(4, 4 + steps, places, there - {4}, advance=advance, drop=there.discard, backward=backward)
    assert order == list(range(4 + steps - 1, 3, -1))
    assert there == {4}
    assert most <= 2 + places  # the one that is gone back over next is there in any case
    first_pass = max(kept_inputs(4, 4 + steps, places), default=4) - 4  # the forward pass has gone there already
    assert again == repeated(steps, places) - first_pass


def test_how_many_are_computed_again():
    assert repeated(12, 11) == 11  # the forward pass itself
    assert repeated(12, 0) == 66
    assert repeated(12, 3) < repeated(12, 2) < repeated(12, 1) < 66
