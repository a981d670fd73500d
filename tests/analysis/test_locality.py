"""Locality, rank and entropy, against values computed by hand."""

from math import log

import pytest
import torch

from inline_attention.analysis.capture import SdpaAttention, capture_pass
from inline_attention.analysis.confusion import confusion
from inline_attention.analysis.locality import _layer_locality, locality, locality_at, mean_locality, neighbourhood_mask
from inline_attention.analysis.rank import mean_rank_stats, rank_stats

from .models import images, make_model


def call(logits, grid, prefix=0):
    """Softmax attention with these logits, (M, N): queries are unit vectors."""
    tokens = len(logits)
    q = torch.eye(tokens)[None, None]
    return SdpaAttention("one", grid, prefix, q, logits.T[None, None].contiguous(), torch.zeros(1, 1, tokens, 2), None, 1.0)


def test_even_weights_have_the_even_share():
    (found,) = locality([call(torch.zeros(12, 12), (3, 4))])
    expected = sum((min(r + 2, 3) - max(r - 1, 0)) * (min(c + 2, 4) - max(c - 1, 0)) for r in range(3) for c in range(4)) / 144
    assert found.attention[0] == pytest.approx(expected)
    assert found.even[0] == pytest.approx(expected)
    assert found.attention[2] == pytest.approx(1, abs=0.09)


def test_diagonal_weights_are_all_local():
    (found,) = locality([call(torch.eye(12) * 100, (3, 4))])
    assert found.attention == pytest.approx([1, 1, 1])
    far = torch.zeros(12, 12)
    far[:, 11] = 100  # everyone looks at the last corner
    (found,) = locality([call(far, (3, 4))])
    assert found.attention[0] == pytest.approx(4 / 12), "the four queries around that corner"
    (one,) = locality_at([call(far, (3, 4))], (0.9, 0.9))
    (other,) = locality_at([call(far, (3, 4))], (0.0, 0.0))
    assert one.attention[0] == pytest.approx(1)
    assert other.attention[0] == pytest.approx(0, abs=1e-6)
    assert other.even[0] == pytest.approx(4 / 12)


def test_windows_are_clipped_and_prefix_tokens_have_none():
    layer = call(torch.zeros(14, 14), (3, 4), prefix=2)
    found = neighbourhood_mask(layer, torch.tensor([0, 2, 7]), 3)
    assert not found[0].any()
    assert found[1].nonzero().flatten().tolist() == [2, 3, 6, 7]
    assert found[2].nonzero().flatten().tolist() == [2, 3, 4, 6, 7, 8, 10, 11, 12]
    with pytest.raises(ValueError, match="odd side, got 4"):
        neighbourhood_mask(layer, torch.tensor([2]), 4)


@pytest.mark.parametrize("mixer", ["inline", "linear", "focused"])
def test_locality_is_that_of_the_rows(mixer):
    model = make_model(mixer=mixer)
    layer = capture_pass(model, images())[2]
    (found,) = locality([layer], (3,))
    own = both = 0.0
    rows = layer.rows(range(layer.tokens))
    for query in range(layer.num_prefix_tokens, layer.tokens):
        window = neighbourhood_mask(layer, torch.tensor([query]), 3)[0]
        alone = rows.mixed[:, :, query].abs()
        own += float((alone[..., window].sum(-1) / alone.sum(-1)).mean())
        together = rows.mixed[:, :, None, query]
        if rows.local is not None:
            together = together + rows.local.unflatten(1, (rows.mixed.shape[1], -1))[:, :, :, query]
        together = together.abs().mean(2)
        both += float((together[..., window].sum(-1) / together.sum(-1)).mean())
    queries = layer.tokens - layer.num_prefix_tokens
    assert found.attention[0] == pytest.approx(own / queries, rel=1e-4)
    assert found.together[0] == pytest.approx(both / queries, rel=1e-4)
    assert torch.tensor(found.heads[0]).mean() == pytest.approx(found.attention[0], rel=1e-4)
    parts = mean_locality([locality([capture_pass(model, image[None])[2]], (3,)) for image in images()])
    assert parts[0].attention[0] == pytest.approx(found.attention[0], rel=1e-4)
    assert parts[0].images == 2


def test_rank_and_entropy_of_known_weights():
    (even,) = rank_stats([call(torch.zeros(12, 12), (3, 4))])
    assert (even.rank, even.effective_rank, even.entropy, even.negative) == pytest.approx((1, 1, 1, 0), abs=1e-4)
    (own,) = rank_stats([call(torch.eye(12) * 100, (3, 4))])
    assert (own.rank, own.effective_rank, own.entropy, own.negative) == pytest.approx((12, 12, 0, 0), abs=1e-4)
    two = torch.full((12, 12), -100.0)
    two[:, :2] = 0
    (half,) = rank_stats([call(two, (3, 4))])
    assert half.entropy == pytest.approx(log(2) / log(12), abs=1e-5)


def test_rank_of_linear_weights_is_at_most_the_head_dimension_plus_one():
    seen = capture_pass(make_model(), images())
    width = seen[0].project()[0].shape[-1]
    found = rank_stats(seen)
    assert all(one.rank <= width + 1 for one in found)
    assert any(one.negative > 0 for one in found)
    parts = mean_rank_stats([rank_stats(capture_pass(make_model(), image[None])) for image in images()])
    assert parts[0].effective_rank == pytest.approx(found[0].effective_rank, rel=1e-4)


def test_locality_of_softmax_in_chunks():
    """Without a local part both shares are equal to the last bit."""
    layer = capture_pass(make_model(mixer="softmax", patch_size=2), images())[0]
    (whole,) = locality([layer])
    parts = tuple(torch.arange(layer.num_prefix_tokens, layer.tokens).split(7))
    found = _layer_locality(layer, (3, 5, 7), parts)
    assert whole.together == whole.attention
    assert found.together == found.attention
    assert found.attention == pytest.approx(whole.attention, rel=1e-5)


def test_even_weights_within_windows():
    """Keys outside the window of a query do not count."""
    model = make_model("inline_swin_nano", "softmax")
    for part in model.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.zeros_(part.weight)
            torch.nn.init.zeros_(part.bias) if part.bias is not None else None
        if hasattr(part, "position") and part.position is not None:
            for parameter in part.position.parameters():
                torch.nn.init.zeros_(parameter)
    for found in locality(capture_pass(model, images())):
        assert found.attention == pytest.approx(found.even, rel=1e-4)


def test_layers_with_one_token_are_left_out():
    alone, other = call(torch.zeros(1, 1), (1, 1)), call(torch.zeros(4, 4), (2, 2))
    assert confusion([alone, other]).pairs == (6,)
    assert len(rank_stats([alone, other])) == 1
    assert rank_stats([alone]) == []
    with pytest.raises(ValueError, match="one token only"):
        confusion([alone])
