"""Exactly the planted collisions are counted."""

from dataclasses import replace

import pytest
import torch
from numpy.linalg import norm

from inline_attention.analysis import confusion as confusion_file
from inline_attention.analysis.capture import SdpaAttention, capture_pass
from inline_attention.analysis.confusion import TOLERANCES, confused_pairs, confusion, count_confused, merge_batches

from .models import images, make_model


def naive(queries, weights, tolerance):
    """Pair by pair, from the definition."""
    queries, weights, count = queries.numpy(), weights.numpy(), 0
    for i in range(len(queries)):
        for j in range(i + 1, len(queries)):
            far = norm(queries[i] - queries[j]) > tolerance * max(norm(queries[i]), norm(queries[j]))
            close = norm(weights[i] - weights[j]) <= tolerance * max(norm(weights[i]), norm(weights[j]))
            count += bool(far and close)
    return count


def test_planted_collisions_are_counted_exactly():
    torch.manual_seed(0)
    queries, weights = torch.randn(3, 2, 12, 4), torch.rand(3, 2, 12, 12)
    assert confused_pairs(queries, weights).sum() == 0
    weights[1, 0, [2, 5, 9]] = weights[1, 0, 2].clone()  # three rows alike: three pairs
    weights[2, 1, 7] = weights[2, 1, 0] * 1.005  # within a hundredth
    weights[0, 0, 7] = weights[0, 0, 0] * 1.02  # beyond it
    queries[1, 0, 9] = queries[1, 0, 2]  # the same query: no confusion
    expected = torch.zeros(3, 2, dtype=torch.long)
    expected[1, 0], expected[2, 1] = 2, 1
    assert torch.equal(confused_pairs(queries, weights), expected)


@pytest.mark.parametrize("mixer", ["inline", "softmax", "linear", "hydra", "efficient"])
def test_counts_are_those_of_the_definition(mixer, monkeypatch):
    """In one piece, in chunks, and image by image."""
    model = make_model(mixer=mixer, std=0.05)
    seen = capture_pass(model, images())
    layer = seen[3]
    found = count_confused(layer)
    queries, weights = layer.project()[0].double(), layer.weights().double()
    if weights.shape[1] != queries.shape[1]:
        queries = queries.transpose(2, 3).flatten(1, 2).unsqueeze(-1)
    for image, head in ((0, 0), (1, weights.shape[1] - 1)):
        expected = [naive(queries[image, head], weights[image, head], tolerance) for tolerance in TOLERANCES]
        assert found[image, head].tolist() == expected
    monkeypatch.setattr(confusion_file, "MAX_WEIGHTS", 7 * layer.rows([0]).mixed.numel())
    assert torch.equal(count_confused(layer), found)
    whole = confusion(seen)
    alone = [confusion(capture_pass(model, image[None])) for image in images()]
    assert merge_batches(alone).by_image() == whole.by_image()


def test_all_queries_on_a_ray_are_confused_by_division_and_none_by_subtraction():
    """An image whose queries differ in length only."""
    torch.manual_seed(0)
    direction = torch.randn(1, 2, 1, 8)
    q = direction * torch.linspace(0.5, 3, 24).view(1, 1, -1, 1)
    pairs = 24 * 23 // 2
    for mixer, expected in (("linear", pairs), ("inline", 0), ("softmax", 0)):
        layer = capture_pass(make_model(mixer=mixer), images(1))[0]
        k = torch.randn(1, 2, 24, 8)
        assert confused_pairs(q, layer.weigh(q, k)).tolist() == [[expected, expected]], mixer


def test_shares_and_counts_of_a_record():
    layer = SdpaAttention("one", (2, 2), 0, torch.randn(3, 2, 4, 5), torch.zeros(3, 2, 4, 5), torch.randn(3, 2, 4, 5), None)
    apart = torch.eye(4, 5).expand(3, 2, 4, 5)  # everyone looks at itself
    found = confusion([layer, replace(layer, name="two", q=100 * apart, k=apart)])
    assert found.layers == ("one", "two")
    assert found.pairs == (6, 6)
    assert found.by_layer()[0] == 1, "keys that are all zero weigh everything alike"
    assert found.by_layer()[1] == 0
    assert found.share() == 0.5
    assert found.by_image() == [12, 12, 12]
    assert found.by_head() == [[1, 1], [0, 0]]
    with pytest.raises(ValueError, match=r"counted for tolerances \(0.001, .* not for 0.5"):
        found.share(0.5)
