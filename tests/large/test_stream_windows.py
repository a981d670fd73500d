"""Blocks in windows, and blocks that take a small map at once, give in parts what they give whole."""

import pytest
import torch
from timm.models import create_model

from inline_attention import stream
from inline_attention.large.stages import ways_through
from inline_attention.large.windowed_block import mix_part, read_part, window_parts, write_part
from inline_attention.layers import Block
from inline_attention.layers import softmax as softmax_file
from inline_attention.ops.shifted_windows import Window, cut, regions, slabs, to_windows

from ..layers.variants import build

MODELS = [
    pytest.param("inline_swin_nano", {}, id="swin"),
    pytest.param("inline_swin_nano", {"mixer": "softmax", "rope": "heads", "embed_dim": 32}, id="swin-softmax-rope"),
    pytest.param("inline_swin_nano", {"mixer": "linear", "inline_window": (3, 5), "depths": (2, 1, 2, 1)}, id="swin-linear"),
    pytest.param("inline_swin_nano", {"inline_window": 4, "inline_depths": (1, 1, 2, 1)}, id="swin-inline-windows"),
    pytest.param("inline_cswin_nano", {}, id="cswin"),
    pytest.param("inline_cswin_nano", {"mixer": "softmax", "local": True, "stripes": (3, 2, None, 2)}, id="cswin-softmax"),
    pytest.param("inline_deit_nano", {"mixer": "softmax", "depth": 2, "patch_size": 4}, id="deit-softmax"),
    pytest.param("inline_deit_nano", {"mixer": "angular", "depth": 2, "patch_size": 4}, id="deit-angular"),
    pytest.param("inline_pvt_nano", {"mixer": "softmax"}, id="pvt-softmax"),
    pytest.param("inline_pvt_nano", {"mixer": "enhanced"}, id="pvt-enhanced"),
    pytest.param("inline_cswin_nano", {"mixer": "efficient", "rope": "heads", "embed_dim": 32}, id="cswin-efficient-rope"),
]


def made(name, **options):
    torch.manual_seed(0)
    return create_model(name, num_classes=5, **options).double().eval()


@pytest.mark.parametrize(("name", "options"), MODELS)
@pytest.mark.parametrize(
    ("size", "tokens", "masked"), [((70, 45), 100, False), ((45, 61), 1, True)], ids=["parts", "smallest parts, masked"]
)
def test_parts_give_what_the_whole_gives(name, options, size, tokens, masked):
    model = made(name, **options)
    model.set_input_size(size)  # positions need no resampling, which timm does in fp32
    image, mask = torch.randn(1, 3, *size, dtype=torch.float64), None
    if masked:
        mask = torch.rand(1, *size) > 0.995
        mask[:, 13:20] = False
        mask[:, 30:41, 25:] = True
    with torch.no_grad():
        features, maps = model.forward_intermediates(image, norm=True, mask=mask)
        logits = model(image, mask)
    streamed = stream(model, image, tokens=tokens, mask=None if mask is None else mask[0])
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(streamed.logits, logits, **close)
    torch.testing.assert_close(streamed.features, features, **close)
    for ours, plain in zip(streamed.maps, maps if len(streamed.maps) > 1 else maps[-1:], strict=True):
        torch.testing.assert_close(ours, plain, **close)


@pytest.mark.parametrize(
    "window", [Window(4, 3, shifted=True), Window(4, 3), Window(None, 2), Window(3, None), Window(20, 20, True)]
)
@pytest.mark.parametrize("grid", [(11, 8), (4, 9), (3, 2)])
@pytest.mark.parametrize("tokens", [1, 30, 10**6])
def test_slabs_are_whole_windows(window, grid, tokens):
    """Together they are all windows of the map, in their order, with the same regions; what is written back is the map."""
    cuts = cut(grid, window)
    numbers = torch.arange(1.0, 1 + grid[0] * grid[1]).view(1, *grid, 1)
    parts, back = slabs(cuts, tokens), torch.zeros_like(numbers)
    inside = [to_windows(slab.read(numbers).flatten(1, 2), slab.cuts) for slab in parts]
    assert torch.equal(torch.cat(inside), to_windows(numbers.flatten(1, 2), cuts))
    whole = regions(cuts, numbers.device)
    if whole is None:
        assert all(regions(slab.cuts, numbers.device) is None for slab in parts)
    else:
        assert torch.equal(torch.cat([regions(slab.cuts, numbers.device) for slab in parts]), whole)
    for slab in parts:
        slab.write(slab.read(numbers), back)
        height, width = slab.cuts.grid
        assert height * width <= max(tokens, cuts.size[0] * width if cuts.counts[0] > 1 else cuts.size[1] * height)
    assert torch.equal(back, numbers)


@pytest.mark.parametrize(
    "windows", [(Window(4, 3, shifted=True),), (Window(None, 2), Window(3, None))], ids=["shifted", "stripes"]
)
def test_an_adapted_projection_is_called_in_parts_too(windows):
    """Its channels are chosen after it."""
    block = Block(build("softmax", windows=windows, lepe=True)).double().eval()
    block.mixer.q = torch.nn.Sequential(block.mixer.q)
    x, scratch = torch.randn(1, 7, 5, 8, dtype=torch.float64), torch.empty(1, 7, 5, 8, dtype=torch.float64)
    for part in window_parts(block, (7, 5), 1):
        write_part(block, part, mix_part(block, part, *read_part(part, x, None)), scratch)
    tokens = x.flatten(1, 2)
    torch.testing.assert_close(block.finish(tokens, scratch.flatten(1, 2)), block(tokens, (7, 5)), rtol=1e-10, atol=1e-10)


def test_memory_holds_a_part(monkeypatch):
    seen = []
    original = Block.finish
    monkeypatch.setattr(Block, "finish", lambda self, x, mixed: (seen.append(x.shape[1]), original(self, x, mixed))[1])
    monkeypatch.setattr(
        "inline_attention.large.streamed_stage.mix_part",
        lambda block, part, x, valid: (seen.append(x.shape[1]), mix_part(block, part, x, valid))[1],
    )
    model = made("inline_swin_nano", mixer="softmax")
    stream(model, torch.randn(3, 160, 96, dtype=torch.float64), tokens=200)  # a row of 4 x 4 windows has 192 tokens
    assert max(seen) == 192
    assert len(seen) > 40


def test_how_blocks_take_an_image():
    assert ways_through(made("inline_swin_nano"), "x") == [["bands"], ["bands"], ["bands", "bands"], ["windows"]]
    cswin = made("inline_cswin_nano")
    assert ways_through(cswin, "x", (1024, 2048)) == [["bands"], ["bands"], ["windows"] * 2, ["whole"]]
    with pytest.raises(ValueError, match=r"stages.3.blocks.0 is SoftmaxAttention over the whole map, here of 16,512 tokens"):
        ways_through(cswin, "x", (2048, 2050))


def test_queries_in_chunks_are_queries_at_once(monkeypatch):
    """Without gradients no more weights are made at once than fit; with a bias of each query too."""
    plain, windowed = build("softmax"), build("softmax", windows=(Window(4, 3, shifted=True),), position_bias=True)
    x, mask = torch.randn(2, 35, 8, dtype=torch.float64), torch.rand(2, 35) > 0.3
    with torch.no_grad():
        expected = [plain(x, (7, 5), mask=mask), windowed(x, (7, 5), mask=mask)]
        monkeypatch.setattr(softmax_file, "WEIGHTS_AT_ONCE", 100)
        for ours, whole in zip([plain(x, (7, 5), mask=mask), windowed(x, (7, 5), mask=mask)], expected, strict=True):
            torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-12)
