"""One query at several lengths."""

import pytest
import torch

from inline_attention import MIXERS
from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.rays import LENGTHS, plane, ray

from .models import images, make_model

PAIRS = len(LENGTHS) * (len(LENGTHS) - 1) // 2
ALWAYS = {"linear": PAIRS, "enhanced": PAIRS, "focused": PAIRS, "angular": PAIRS, "hydra": PAIRS, "inline": 0, "softmax": 0}
ALWAYS |= {"pola": PAIRS, "mhla": PAIRS, "mala": 0, "vit3": 0}


@pytest.mark.parametrize("mixer", MIXERS)
def test_which_attention_ignores_the_length_of_a_query(mixer):
    """Division by the sum and normalised queries forget it; subtraction and softmax do not."""
    layer = capture_pass(make_model(mixer=mixer, std=0.12), images())[2]
    found = ray(layer, 5, image=1)
    own = layer.compared([5])[1, :, 0]
    torch.testing.assert_close(found.weights[:, LENGTHS.index(1.0)], own, atol=1e-6, rtol=1e-5)
    assert found.pairs == PAIRS
    if mixer in ALWAYS:
        assert found.confused.tolist() == [ALWAYS[mixer]] * len(found.confused)


def test_weights_of_inline_move_in_proportion_to_the_length():
    layer = capture_pass(make_model(), images())[1]
    weights = ray(layer, 0, (1.0, 3.0)).weights * layer.tokens - 1
    torch.testing.assert_close(weights[:, 1], 3 * weights[:, 0], atol=1e-4, rtol=1e-3)


def test_the_plane_shows_what_the_paper_shows():
    queries, keys, rays = plane()
    assert queries.shape == (4, 2)
    assert [(one.title, one.confused.tolist()) for one in rays] == [("softmax", [0]), ("linear, ReLU", [6]), ("InLine", [0])]
    for one in rays:
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(1, 4, dtype=torch.float64), atol=1e-5, rtol=0)
        assert one.weights.shape[-1] == len(keys)


def test_windows_have_no_ray():
    seen = capture_pass(make_model("inline_swin_nano", "softmax"), images())
    windowed = next(layer for layer in seen if layer.windowed)
    with pytest.raises(ValueError, match=r"attends in windows or has a mask: use rows\(\) for its weights"):
        ray(windowed, 0)
