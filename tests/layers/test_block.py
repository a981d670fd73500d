"""One block around any mixer, and the MLP of enhanced attention."""

from math import prod

import pytest
import torch
import torch.nn.functional as F

from inline_attention import MIXERS, InLineAttention
from inline_attention.layers import block as block_file
from inline_attention.layers.block import Block, DepthwiseMlp


@pytest.mark.parametrize("name", MIXERS)
def test_a_block_is_two_residual_branches(name):
    block = Block(MIXERS[name](16, 2), mlp_ratio=2).eval()
    x = torch.randn(2, 13, 16, requires_grad=True)
    mask = torch.rand(2, 13) > 0.3
    call = {"num_prefix_tokens": 1, "mask": mask}
    out = block(x, (3, 4), **call)
    middle = x * mask.unsqueeze(-1)
    middle = middle + block.mixer(block.norm1(middle), (3, 4), **call)
    assert isinstance(block.mlp, DepthwiseMlp) == (name == "enhanced")
    hidden = block.norm2(middle)
    expected = middle + (block.mlp(hidden, (3, 4), **call) if name == "enhanced" else block.mlp(hidden))
    torch.testing.assert_close(out, expected)
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in block.parameters())


@pytest.mark.parametrize("prefix", [0, 2])
def test_convolutional_positions_are_added_to_the_tokens(prefix):
    """On the grid, around zeros where tokens are masked; before attention, or before the MLP too."""
    block = Block(MIXERS["linear"](8, 2), cpe="both").eval()
    x, mask = torch.randn(2, prefix + 12, 8), torch.rand(2, prefix + 12) > 0.3
    call = {"num_prefix_tokens": prefix, "mask": mask}

    def placed(tokens, part):
        tokens = tokens * mask.unsqueeze(-1)
        image = tokens[:, prefix:].mT.unflatten(2, (3, 4))
        added = F.conv2d(image, part.weight.unsqueeze(1), part.bias, padding=1, groups=8).flatten(2).mT
        return (tokens + F.pad(added, (0, 0, prefix, 0))) * mask.unsqueeze(-1)

    expected = placed(x, block.cpe1)
    expected = expected + block.mixer(block.norm1(expected), (3, 4), **call)
    expected = placed(expected, block.cpe2)
    expected = expected + block.mlp(block.norm2(expected))
    torch.testing.assert_close(block(x, (3, 4), **call), expected)
    assert Block(MIXERS["linear"](8, 2), cpe=True).cpe2 is None
    with pytest.raises(ValueError, match="cpe must be False, True or 'both', got 'mlp'"):
        Block(MIXERS["linear"](8, 2), cpe="mlp")


@pytest.mark.parametrize("name", ["inline", "enhanced"])
def test_dropout_is_in_the_mlp(name):
    block = Block(MIXERS[name](16, 2), drop=0.5)
    x = torch.randn(2, 12, 16)
    assert not torch.equal(block.train()(x, (3, 4)), block(x, (3, 4)))
    assert torch.equal(block.eval()(x, (3, 4)), block(x, (3, 4)))
    assert block.mlp(*([x, (3, 4)] if name == "enhanced" else [x])).eq(0).float().mean() < 0.1
    dropped = block.train().mlp(*([x, (3, 4)] if name == "enhanced" else [x]))
    assert 0.3 < float(dropped.eq(0).float().mean()) < 0.7


def test_drop_path_drops_whole_branches():
    block = Block(MIXERS["inline"](16, 2), drop_path=0.999).train()
    x = torch.randn(4, 12, 16)
    assert torch.equal(block(x, (3, 4)), x)


@pytest.mark.parametrize("prefix", [0, 2])
def test_depthwise_mlp_is_a_convolution_of_the_hidden_layer(prefix):
    mlp = DepthwiseMlp(4, 12)
    x = torch.randn(3, prefix + 20, 4)
    hidden = mlp.fc1(x)
    image = hidden[:, prefix:].mT.reshape(3, 12, 4, 5)
    image = F.conv2d(image, mlp.weight.unsqueeze(1), mlp.bias, padding=1, groups=12)
    hidden = torch.cat([hidden[:, :prefix], image.flatten(2).mT], 1)
    torch.testing.assert_close(mlp(x, (4, 5), num_prefix_tokens=prefix), mlp.fc2(F.gelu(hidden)))


def test_depthwise_mlp_checks_its_grid():
    with pytest.raises(ValueError, match=r"grid \(4, 5\) has 20 tokens"):
        DepthwiseMlp(4, 12)(torch.zeros(1, 19, 4), (4, 5))


def test_a_block_wants_a_mixer():
    with pytest.raises(ValueError, match=r"mixer must be an instance of one of MIXERS, .* got 'inline'"):
        Block("inline")


@pytest.mark.parametrize(("grid", "prefix"), [((11, 6), 0), ((11, 6), 2), ((7, 3, 4), 1), ((50,), 1)])
@pytest.mark.parametrize("options", [{}, {"local": False}, {"lepe": True}, {"local_size": 5}], ids=str)
def test_a_large_image_is_taken_in_bands(grid, prefix, options, monkeypatch):
    """Without gradients, and with no one watching; the same comes out."""
    torch.manual_seed(0)
    made = Block(InLineAttention(24, 3, grid_dims=len(grid), form="folded", **options), raw_local=prefix == 2).double().eval()
    x = torch.randn(2, prefix + prod(grid), 24, dtype=torch.float64)
    with torch.no_grad():
        whole = made(x, grid, num_prefix_tokens=prefix)
        monkeypatch.setattr(block_file, "LARGE_IMAGE", 1)
        monkeypatch.setattr(block_file, "BAND_TOKENS", 3 * prod(grid[1:]))
        seen = []
        respond = Block.respond
        monkeypatch.setattr(Block, "respond", lambda self, x, *a, **b: (seen.append(x.shape[1]), respond(self, x, *a, **b))[1])
        torch.testing.assert_close(made(x, grid, num_prefix_tokens=prefix), whole, rtol=1e-10, atol=1e-10)
    assert len(seen) == bool(prefix) + -(-grid[0] // 3)
    seen.clear()
    torch.testing.assert_close(
        made(x, grid, num_prefix_tokens=prefix), whole, rtol=1e-10, atol=1e-10
    )  # gradients need it whole
    with torch.no_grad():
        made.mixer.proj.register_forward_hook(lambda *_: None)
        torch.testing.assert_close(made(x, grid, num_prefix_tokens=prefix), whole, rtol=1e-10, atol=1e-10)
    assert not seen


def test_dropout_kept_on_by_hand_is_kept_on_large_images(monkeypatch):
    """Monte-Carlo dropout: the model in eval, its dropout layers in training."""
    torch.manual_seed(0)
    made = Block(InLineAttention(24, 3, form="folded", proj_drop=0.5), drop=0.5).eval()
    for part in made.modules():
        if isinstance(part, torch.nn.Dropout):
            part.train()
    x = torch.randn(1, 66, 24)
    monkeypatch.setattr(block_file, "LARGE_IMAGE", 1)
    with torch.no_grad():
        torch.manual_seed(1)
        banded = made(x, (11, 6))
        torch.manual_seed(1)
        monkeypatch.setattr(block_file, "LARGE_IMAGE", 2**23)
        torch.testing.assert_close(banded, made(x, (11, 6)), rtol=0, atol=0)
        assert not torch.equal(banded, made(x, (11, 6)))
