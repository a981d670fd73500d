"""Views of weights are kept while nothing changes, and never outlive what they show."""

import copy
import pickle

import pytest
import torch
from timm.models import create_model

from inline_attention import InLineAttention
from inline_attention.layers.weight_views import WeightViews


def transposed(weight):
    return weight.t()


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return InLineAttention(24, 3, form="folded").eval()


def outputs(layer):
    x = torch.randn(1, 30, 24, generator=torch.Generator().manual_seed(1))
    return layer(x, (5, 6))


def changed_in_place(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))


def loaded(layer):
    layer.load_state_dict({name: torch.randn_like(tensor) for name, tensor in layer.state_dict().items()})


def replaced(layer):
    layer.q.weight = torch.nn.Parameter(torch.randn_like(layer.q.weight))
    layer.local.taps.bias = torch.nn.Parameter(torch.randn_like(layer.local.taps.bias))


def moved(layer):
    for parameter in layer.parameters():
        parameter.data = torch.randn_like(parameter)


@pytest.mark.parametrize("change", [changed_in_place, loaded, replaced, moved])
def test_changed_weights_are_seen(layer, change):
    with torch.no_grad():
        before = outputs(layer)
        change(layer)
        after = outputs(layer)
    fresh = InLineAttention(24, 3, form="folded").eval()
    fresh.load_state_dict(layer.state_dict())
    torch.testing.assert_close(after, outputs(fresh), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before, after)


def test_views_are_kept_without_gradients_only():
    views, weight = WeightViews(transposed), torch.nn.Parameter(torch.randn(2, 3))
    assert views(weight) is not views(weight)
    with torch.no_grad():
        assert views(weight) is views(weight)
    views(weight).sum().backward()
    assert weight.grad is not None


def test_copies_and_files_have_views_of_their_own_weights(layer):
    with torch.no_grad():
        outputs(layer)
        for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            changed_in_place(twin)
            assert not torch.allclose(outputs(twin), outputs(layer))


def test_one_small_image_takes_few_operators():
    """Views of weights and of single images are what makes the number small: 1,235 without them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            self.count += 1
            return function(*arguments, **(options or {}))

    model, image = create_model("inline_deit_tiny").eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        model(image)
        with Counter() as counter:
            model(image)
    assert counter.count <= 600
