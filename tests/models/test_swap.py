"""Another attention in models that exist: the same outputs where the formula is the same, the mixer's where it is not."""

import copy
import pickle
import re
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import Attention, AttentionPoolLatent
from timm.models import VisionTransformer
from torch import nn

from inline_attention import KERNELS, stream, swap
from inline_attention.analysis.capture import capture
from inline_attention.layers import MIXERS, InLineAttention, Mixer, SoftmaxAttention
from inline_attention.models import swap_mixer as swapping
from inline_attention.models.swap_timm import SwinBlock, TimmAttention
from inline_attention.ops.shifted_windows import Window
from inline_attention.training.load_trained import load_trained

from ..formulas import FORMULAS
from .published import SMALL

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
REGISTERS = {"reg_tokens": 4, "no_embed_class": True, "init_values": 0.5}


def stirred(model):
    """The model in eval mode, no parameter of which is zero or one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def vit(**options):
    return stirred(VisionTransformer(**{**SIZE, **options}))


def distilled():
    return stirred(timm.create_model("deit_tiny_distilled_patch16_224", **SIZE))


def swin(**options):
    size = {"img_size": (32, 48), "patch_size": 2, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}
    return stirred(timm.create_model("swin_tiny_patch4_window7_224", num_classes=3, **{**size, **options}))


def by_hand(attention, swapped, name, **options):
    """The mixer as one would build it from timm's attention; what is new in it is taken from the swapped one."""
    mixer = MIXERS[name](attention.qkv.in_features, attention.num_heads, **options)
    new = {key: value for key, value in swapped.state_dict().items() if key.split(".")[0] not in ("q", "kv", "proj")}
    (w_q, *w_kv), (b_q, *b_kv) = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
    own = {"q.weight": w_q, "q.bias": b_q, "kv.weight": torch.cat(w_kv), "kv.bias": torch.cat(b_kv)}
    proj = {f"proj.{key}": value for key, value in attention.proj.state_dict().items()}
    mixer.load_state_dict({**new, **own, **proj})
    return mixer.eval()


# The same formula


@pytest.mark.parametrize(
    "build",
    [
        vit,
        partial(vit, class_token=False, global_pool="avg", qkv_bias=False),
        partial(vit, **REGISTERS),
        partial(vit, qk_norm=True, proj_bias=False),
        partial(vit, num_heads=8, dynamic_img_size=True, class_token=False, reg_tokens=1, global_pool="map"),
        distilled,
    ],
)
def test_softmax_for_softmax_changes_nothing(build):
    model, images = build(), torch.randn(2, 3, 32, 32)
    before = model(images)
    report = swap(model, "softmax", local=False)
    assert report.changed == {f"blocks.{number}.attn": "softmax -> softmax" for number in range(2)}
    assert not any(isinstance(module, Attention) for module in model.modules())
    torch.testing.assert_close(model(images), before, rtol=0, atol=1e-5)


def test_swin_in_its_windows_changes_nothing():
    model, images = swin(strict_img_size=False), torch.randn(2, 3, 32, 48)
    larger = torch.randn(1, 3, 64, 48)
    before, before_larger = model(images), model(larger)
    report = swap(model, "softmax", keep_windows=True)
    assert report.changed["layers.1.blocks.1.attn"] == (
        "softmax in shifted windows of 4 x 4 -> softmax in shifted windows of 4 x 4"
    )
    torch.testing.assert_close(model(images), before, rtol=0, atol=1e-5)
    torch.testing.assert_close(model(larger), before_larger, rtol=0, atol=1e-5)


def test_swin_gets_other_windows_as_timm_gives_them():
    model, other = swin(), swin(img_size=(32, 32), window_size=8)
    state = {name: value for name, value in model.state_dict().items() if "table" not in name}
    swap(model, "softmax", keep_windows=True)
    model.set_input_size((32, 32), window_size=(8, 8))
    assert model.layers[0].blocks[1].attn.windows == (Window(8, 8, shifted=True),)
    assert model.layers[1].blocks[1].attn.windows == (Window(8, 8, shifted=False),)
    for number, block in ((0, 0), (0, 1), (1, 0), (1, 1)):
        table = model.layers[number].blocks[block].attn.position.table
        assert table.shape[:2] == (15, 15)
        state[f"layers.{number}.blocks.{block}.attn.relative_position_bias_table"] = table.flatten(0, 1)
    other.load_state_dict(state)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(model(images), other(images), rtol=0, atol=1e-5)


# Another formula


SWAPPABLE = [name for name in MIXERS if not MIXERS[name].own_projections]


@pytest.mark.parametrize("name", SWAPPABLE)
def test_a_swapped_attention_is_the_mixer_built_by_hand(name):
    model = vit(**REGISTERS, dynamic_img_size=True)
    attention = model.blocks[1].attn
    swap(model, name)
    seen = []
    model.blocks[1].attn.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    mixer = by_hand(attention, model.blocks[1].attn.mixer, name)
    for grid in ((4, 4), (3, 7), (7, 3)):
        model(torch.randn(2, 3, 8 * grid[0], 8 * grid[1]))
        x, out = seen.pop()
        torch.testing.assert_close(out, mixer(x, grid, num_prefix_tokens=5), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["inline", "linear", "hydra"])
def test_a_swapped_attention_is_the_equation(name):
    model = vit(class_token=False, global_pool="avg")
    attention = model.blocks[0].attn
    swap(model, name, local=False)
    x = torch.randn(2, 16, 32)
    expected = []
    for image in x:
        q, k, v = attention.qkv(image).chunk(3, dim=-1)
        expected.append(attention.proj(FORMULAS[name](q, k, v, 4)))
    torch.testing.assert_close(model.blocks[0].attn(x), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_swin_over_the_whole_map_and_in_windows():
    for keep in (False, True):
        model = swin()
        block = model.layers[0].blocks[1]
        attention, report = block.attn, swap(model, keep_windows=keep)
        words = f"inline with local residual{' in shifted windows of 4 x 4' if keep else ''}"
        assert report.changed["layers.0.blocks.1.attn"] == (
            f"softmax in shifted windows of 4 x 4 -> {words}; dropped: position table"
        )
        swapped = model.layers[0].blocks[1]
        windows = (Window(4, 4, shifted=True),) if keep else ()
        mixer = by_hand(attention, swapped.attn, "inline", windows=windows)
        x = torch.randn(2, 7, 10, 16)
        mixed = x + mixer(block.norm1(x).flatten(1, 2), (7, 10)).view_as(x)
        torch.testing.assert_close(swapped(x), mixed + block.mlp(block.norm2(mixed)))
        model.set_input_size((64, 32))
        assert model(torch.randn(1, 3, 64, 32)).shape == (1, 3)


def test_kernel_and_local_are_chosen_as_for_models():
    model = vit()
    swap(model, "linear", kernel="exp", local=True)
    mixer = model.blocks[0].attn.mixer
    assert mixer.kernel is KERNELS["exp"]
    assert mixer.local is not None
    with pytest.raises(ValueError, match="mixer 'softmax' has no kernel to choose, got kernel='exp'"):
        swap(model, "softmax", kernel="exp")
    with pytest.raises(ValueError, match="unknown mixer 'hyena'; known: inline, softmax"):
        swap(model, "hyena")
    with pytest.raises(ValueError, match="unknown kernel 'cosine'; known: identity"):
        swap(model, kernel="cosine")
    assert model.blocks[0].attn.mixer is mixer


# What is kept


def test_norms_and_dropout_of_the_attention_are_kept():
    model = vit(attn_drop_rate=0.2, proj_drop_rate=0.1, qk_norm=True).to(torch.float64)
    model.requires_grad_(False)
    old = model.blocks[0].attn.train()
    old.qkv.weight.requires_grad_()
    swap(model)
    mixer = model.blocks[0].attn.mixer
    assert (mixer.q_norm, mixer.k_norm, mixer.proj, mixer.proj_drop) == (old.q_norm, old.k_norm, old.proj, old.proj_drop)
    assert (mixer.attn_drop, mixer.proj_drop.p, mixer.num_heads) == (0.2, 0.1, 4)
    assert {parameter.dtype for parameter in mixer.parameters()} == {torch.float64}
    learning = {name for name, parameter in mixer.named_parameters() if parameter.requires_grad}
    new = {f"local.{name}" for name, _ in mixer.local.named_parameters()}
    assert learning == {"q.weight", "kv.weight", *new}
    assert model.blocks[0].attn.training
    assert mixer.training
    assert not model.blocks[1].attn.training
    assert not model.blocks[1].attn.mixer.training
    assert not torch.equal(model(torch.ones(1, 3, 32, 32).double()), model(torch.ones(1, 3, 32, 32).double()))
    model.eval()
    assert torch.equal(model(torch.ones(1, 3, 32, 32).double()), model(torch.ones(1, 3, 32, 32).double()))


def test_on_the_meta_device():
    with torch.device("meta"):
        model = VisionTransformer(**SIZE)
    swap(model)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_shared_attention_stays_shared():
    model = vit()
    model.blocks[1].attn = model.blocks[0].attn
    report = swap(model, "linear")
    assert list(report.changed) == ["blocks.0.attn", "blocks.1.attn"]
    assert model.blocks[0].attn is model.blocks[1].attn


# Images of every size, copies, gradients


def test_copies_are_independent_of_each_other():
    model = vit(dynamic_img_size=True)
    swap(model)
    tall, wide = torch.randn(1, 3, 48, 32), torch.randn(1, 3, 32, 48)
    expected = model(tall), model(wide)
    file = BytesIO()
    torch.save(model, file)
    file.seek(0)
    fresh = vit(dynamic_img_size=True)
    swap(fresh)
    fresh.load_state_dict(model.state_dict())
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False), fresh]
    assert len({id(each.blocks[0].attn.token_grid) for each in (model, *copies)}) == 5
    for each in copies:
        assert each.blocks[0].attn.token_grid is each.blocks[1].attn.token_grid
        for images, logits in ((tall, expected[0]), (wide, expected[1])):
            model(wide if images is tall else tall)
            torch.testing.assert_close(each(images), logits)


def test_two_towers_keep_apart():
    towers = nn.ModuleDict({"fine": vit(patch_size=4), "coarse": vit(class_token=False, global_pool="avg")})
    images = torch.randn(1, 3, 32, 32)
    swap(towers)
    alone = [copy.deepcopy(tower)(images) for tower in towers.values()]
    embedded = [
        towers["fine"].patch_embed(images),
        towers["coarse"].patch_embed(images),
    ]
    for tower, patches, logits in zip(towers.values(), embedded, alone, strict=True):
        tokens = tower.norm(tower.blocks(tower._pos_embed(patches)))
        torch.testing.assert_close(tower.forward_head(tokens), logits)


def gradients(model, *images):
    model.zero_grad()
    sum(model(some).square().sum() for some in images).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_gradient_checkpointing():
    model = vit(dynamic_img_size=True).train()
    swap(model)
    large, small = torch.randn(1, 3, 48, 32), torch.randn(1, 3, 32, 16)
    tall, wide = torch.randn(1, 3, 48, 32), torch.randn(1, 3, 32, 48)
    plain = [gradients(model, large, small), gradients(model, tall), gradients(model, wide)]
    with pytest.raises(ValueError, match="no image has come"):
        copy.deepcopy(model).blocks(torch.randn(1, 25, 32))
    model.set_grad_checkpointing()
    for expected, images in zip(plain, [(large, small), (tall,), (wide,)], strict=True):
        for ours, theirs in zip(gradients(model, *images), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        model(tall)
    gradients(model, wide)
    said = r"25 tokens were on a grid \(6, 4\) and on \(4, 6\): with gradient checkpointing, go backward after each of two"
    with pytest.raises(ValueError, match=said):
        gradients(model, tall, wide)
    swap(model, "linear")
    gradients(model, tall, wide)


def test_dropped_patches_are_an_error_only_with_a_local_part():
    model = vit(patch_drop_rate=0.5).train()
    swap(model)
    said = r"attention got 9 tokens, the image has a grid \(4, 4\) of 16 after 1 others: .* \(local=False\)"
    with pytest.raises(ValueError, match=said):
        model(torch.randn(1, 3, 32, 32))
    assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 5)
    swap(model, local=False)
    assert model.train()(torch.randn(1, 3, 32, 32)).shape == (1, 5)


def test_padded_images_have_the_padded_grid():
    model = vit(dynamic_img_size=True, dynamic_img_pad=True)
    swap(model)
    with capture(model) as seen:
        model(torch.randn(1, 3, 33, 20))
    assert [(layer.name, layer.kind, layer.grid, layer.num_prefix_tokens) for layer in seen] == [
        (f"blocks.{number}.attn.mixer", "inline", (5, 3), 1) for number in range(2)
    ]


def test_compiled_equals_eager():
    model = vit(dynamic_img_size=True, depth=1)
    swap(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for shape in ((2, 3, 32, 32), (2, 3, 32, 48)):
        images = torch.randn(shape)
        torch.testing.assert_close(compiled(images), model(images))
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("given", "said"),
    [({"attn_mask": torch.zeros(17, 17)}, r"attn_mask of shape \(17, 17\)"), ({"is_causal": True}, "is_causal=True")],
)
def test_masks_are_refused(given, said):
    model = vit()
    swap(model)
    with pytest.raises(ValueError, match=f"swapped attention takes no mask, got {said}"):
        model.forward_features(torch.randn(1, 3, 32, 32), **given)


# What is left


class Another(Attention):
    """Something of one's own."""


@pytest.mark.parametrize(
    ("attention", "why"),
    [
        (Attention(32, 4, gated=True), "its output is gated"),
        (Attention(32, 4, scale_norm=True, norm_layer=nn.LayerNorm), r"its output goes through a norm \(LayerNorm\)"),
        (Attention(32, 4, attn_head_dim=4), "its heads have 16 channels together, the tokens 32"),
        (Attention(32, 4, dim_out=16), "it gives 16 channels for 32"),
        (Another(32, 4), r"swap does not know tests\.models\.test_swap\.Another"),
        (nn.MultiheadAttention(32, 4), r"torch\.nn\.modules\.activation\.MultiheadAttention .* pass example= .*"),
        (AttentionPoolLatent(32), "AttentionPoolLatent pools tokens"),
    ],
)
def test_what_cannot_be_swapped_is_left_with_a_reason(attention, why):
    model = vit()
    model.blocks[0].attn = attention
    report = swap(model)
    assert list(report.changed) == ["blocks.1.attn"]
    assert model.blocks[0].attn is attention
    assert list(report.left) == ["blocks.0.attn"]
    assert re.fullmatch(why, report.left["blocks.0.attn"])


def test_projections_that_are_not_plain_are_left():
    model = vit()
    torch.nn.utils.parametrizations.weight_norm(model.blocks[0].attn.qkv)
    assert swap(model).left == {"blocks.0.attn": "its qkv is no plain Linear but ParametrizedLinear"}


def test_only_chosen_attention_is_swapped():
    model = vit(depth=3)
    report = swap(model, only=r"blocks\.[12]\.attn")
    assert report.left == {"blocks.0.attn": "not chosen"}
    assert str(report).splitlines() == [
        "2 swapped, 1 left",
        "blocks.1.attn  softmax -> inline with local residual",
        "blocks.2.attn  softmax -> inline with local residual",
        "blocks.0.attn  left: not chosen",
    ]
    grid = model.blocks[1].attn.token_grid
    swap(model, only=r"blocks\.0\.attn")
    assert model.blocks[0].attn.token_grid is grid
    assert len(model.patch_embed._forward_pre_hooks) == 1
    with pytest.raises(ValueError, match=r"only='blocks' matches the whole name of no attention; there are: blocks.0.attn"):
        swap(model, only="blocks")
    with pytest.raises(ValueError, match=r"only='\(' is no regular expression: "):
        swap(model, only="(")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("resnet18", "nothing to swap in ResNet: none of its modules is attention that swap knows, and none was seen"),
        (
            "beit_base_patch16_224",
            "nothing to swap in Beit: blocks.0.attn is left (swap does not know timm.models.beit.Attention), and 11 more",
        ),
    ],
)
def test_nothing_to_swap(name, said):
    with torch.device("meta"):
        model = timm.create_model(name)
    with pytest.raises(ValueError, match=re.escape(said)):
        swap(model)


def test_without_a_patch_embedding():
    blocks = nn.Sequential(*vit().blocks)
    said = "0.attn is left (the grid of its tokens is unknown, and local=True needs it: pass local=False)"
    with pytest.raises(ValueError, match=re.escape(said)):
        swap(blocks)
    swap(blocks, local=False)
    assert blocks(torch.randn(2, 13, 32)).shape == (2, 13, 32)
    with pytest.raises(ValueError, match="the grid of its tokens is unknown"):
        swap(blocks, "focused")


# Again, and our own


def test_swapping_again_keeps_the_projections():
    model, images = vit(), torch.randn(1, 3, 32, 32)
    before = model(images)
    swap(model, "inline", kernel="relu_affine")
    learned = model.blocks[0].attn.mixer.kernel
    assert swap(model, "linear", kernel="relu_affine").changed["blocks.0.attn"] == (
        "inline with local residual -> linear; dropped: local residual"
    )
    assert model.blocks[0].attn.mixer.kernel is learned
    with pytest.raises(ValueError, match=r"nothing to swap in VisionTransformer: blocks.0.attn is left \(linear already\)"):
        swap(model, "linear", kernel="relu_affine")
    assert swap(model, "linear").changed["blocks.0.attn"] == "linear -> linear; dropped: learned kernel"
    swap(model, "softmax", only=r"blocks\.0\.attn")
    assert swap(model, "softmax").left == {"blocks.0.attn": "softmax already"}
    torch.testing.assert_close(model(images), before, rtol=0, atol=1e-5)


def test_swin_again():
    model, images = swin(), torch.randn(1, 3, 32, 48)
    swap(model, "softmax", keep_windows=True)
    first = model.layers[0].blocks[1].attn
    report = swap(model, "inline", keep_windows=True)
    assert report.changed["layers.0.blocks.1.attn"] == (
        "softmax in shifted windows of 4 x 4 -> inline with local residual in shifted windows of 4 x 4; dropped: position table"
    )
    assert model.layers[0].blocks[1].attn.windows == first.windows
    swap(model)
    assert all(not block.attn.windows for block in model.modules() if isinstance(block, SwinBlock))
    assert model(images).shape == (1, 3)


@pytest.mark.parametrize("name", SMALL)
def test_a_softmax_twin_becomes_the_inline_model(name):
    """Parameter for parameter: what a model that is all InLine has, and nothing else."""
    twin = stirred(timm.create_model(name, mixer="softmax"))
    kept = {key: value for key, value in twin.state_dict().items() if "position" not in key and "reduction" not in key}
    report = swap(twin)
    depth = 4 if "deit" not in name else None
    inline = timm.create_model(name, **({"inline_depths": (1, 1, 2, 1)} if depth else {})).eval()
    inline.load_state_dict(twin.state_dict())
    images = torch.randn(2, 3, 40, 32)
    torch.testing.assert_close(inline(images), twin(images))
    assert all(torch.equal(twin.state_dict()[key], value) for key, value in kept.items() if "mixer" in key)
    assert set(report.changed) == {key for key, module in inline.named_modules() if isinstance(module, Mixer)}
    assert not report.left
    dropped = {"inline_swin_nano": "position table", "inline_pvt_nano": "spatial reduction"}.get(name)
    assert dropped is None or report.changed["stages.0.blocks.0.mixer"].endswith(
        f"-> inline with local residual; dropped: {dropped}"
    )


def test_our_own_softmax_blocks_among_inline_ones():
    model = timm.create_model("inline_swin_nano").eval()
    last = model.stages[3].blocks[0].mixer
    assert isinstance(last, SoftmaxAttention)
    report = swap(model, keep_windows=True)
    assert report.changed == {
        "stages.3.blocks.0.mixer": (
            "softmax in windows of 4 x 4 -> inline with local residual in windows of 4 x 4; dropped: position table"
        )
    }
    assert set(report.left.values()) == {"inline with local residual already"}
    mixer = model.stages[3].blocks[0].mixer
    assert isinstance(mixer, InLineAttention)
    assert mixer.q is last.q
    report = swap(model, "softmax", keep_windows=True)
    assert report.changed["stages.0.blocks.0.mixer"] == "inline with local residual -> softmax; dropped: local residual"


def test_a_swapped_twin_takes_images_in_bands():
    model, images = timm.create_model("inline_deit_nano", mixer="softmax").eval(), torch.randn(3, 64, 40)
    swap(model)
    torch.testing.assert_close(stream(model, images).logits, model(images[None]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mila", "vit3"])
def test_mixers_with_projections_of_their_own_replace_nothing(name):
    with pytest.raises(ValueError, match=f"mixer '{name}' has other projections than the attention that it would replace"):
        swap(vit(), name)
    with pytest.raises(ValueError, match=rf"nothing to swap in .* is left \(the projections of {name} are its own\)"):
        swap(timm.create_model("inline_deit_nano", mixer=name), "linear")


@pytest.mark.parametrize("name", SWAPPABLE)
def test_every_mixer_becomes_every_other(name):
    model, images = timm.create_model("inline_cswin_nano", mixer=name).eval(), torch.randn(1, 3, 32, 32)
    lepe = model.stages[0].blocks[0].mixer.lepe
    for other in SWAPPABLE:
        if other != name:
            again = copy.deepcopy(model)
            swap(again, other, keep_windows=True)
            mixer = again.stages[0].blocks[0].mixer
            assert type(mixer) is MIXERS[other]
            assert torch.equal(mixer.lepe.weight, lepe.weight)
            assert torch.isfinite(again(images)).all()


def test_cross_attention_keeps_its_context():
    holder = nn.ModuleDict({"cross": SoftmaxAttention(8, 2, context_dim=6)})
    swap(holder, "inline", local=True)
    assert holder["cross"](torch.randn(1, 3, 8), context=torch.randn(1, 5, 6)).shape == (1, 3, 8)


def test_other_libraries_are_not_imported():
    for file in Path(swapping.__file__).parent.glob("swap*.py"):
        assert not re.search(r"^\s*(import|from) transformers", file.read_text(), re.MULTILINE), file.name


def test_it_is_called_like_timms_attention():
    model = vit()
    swap(model)
    assert isinstance(model.blocks[0].attn, TimmAttention)
    maps = model.get_intermediate_layers(torch.randn(1, 3, 32, 32), n=2, reshape=True)
    assert [tuple(m.shape) for m in maps] == [(1, 32, 4, 4)] * 2


def test_projections_of_which_some_have_a_bias_get_zeros_for_the_others():
    from inline_attention.models.swap_mixer import stacked

    with_bias, without = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False)
    without.weight.requires_grad_(False)
    for parts in ((with_bias, without), (without, with_bias)):
        linear, x = stacked(*((part, slice(1, None)) for part in parts)), torch.randn(3, 4)
        torch.testing.assert_close(linear(x), torch.cat([part(x)[:, 1:] for part in parts], -1))
        assert linear.weight.requires_grad
        assert linear.bias.requires_grad
    assert stacked((without, slice(None))).bias is None


def test_tokens_that_do_not_fit_the_image_have_no_grid():
    """A model that does not say how many tokens come first: its grid is not guessed."""
    from inline_attention.layers import InLineAttention
    from inline_attention.models.swap_grid import TokenGrid

    place = TokenGrid(None)
    place.grid = (2, 3)
    assert place.locate(6, InLineAttention(8, 2)) == ((2, 3), 0)
    with pytest.raises(ValueError, match="attention got 7 tokens"):
        place.locate(7, InLineAttention(8, 2))
    assert place.locate(7, InLineAttention(8, 2, local=False)) == (None, 0)


def test_a_swapped_model_is_exported_for_every_size(tmp_path):
    from inline_attention.deploy.formats import export_graph

    model = timm.create_model(
        "vit_tiny_patch16_224", depth=1, embed_dim=24, num_heads=2, num_classes=3, dynamic_img_size=True, dynamic_img_pad=True
    ).eval()
    swap(model, "inline")
    torch.export.save(export_graph(model), tmp_path / "model.pt2")
    run = torch.export.load(tmp_path / "model.pt2").module(check_guards=False)
    for size in ((224, 224), (100, 70)):
        images = torch.randn(2, 3, *size)
        torch.testing.assert_close(run(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pad", [False, True])
def test_a_hybrid_model_has_the_grid_of_its_maps(pad):
    """Its patches are cut out of maps that a convolutional net made, not out of images."""
    model = timm.create_model(
        "vit_tiny_r_s16_p8_224", depth=1, num_classes=3, dynamic_img_size=True, dynamic_img_pad=pad
    ).eval()  # fmt: skip
    swap(model, "inline")
    for size in ((224, 224), (160, 96)):
        assert model(torch.randn(1, 3, *size)).shape == (1, 3)


def test_a_name_is_no_model():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, such as timm\.create_model makes, got 'vit_tiny"):
        swap("vit_tiny_patch16_224", "inline")


def test_attention_that_was_not_chosen_is_not_checked():
    model = timm.create_model("vit_tiny_patch16_224", depth=2)
    swap(model, "inline")
    with pytest.raises(ValueError, match=r"blocks\.0\.attn is left \(inline with local residual already\)$"):
        swap(model, "inline", only=r"blocks\.0\.attn")


def test_weights_of_a_swapped_model_are_not_taken_for_published_ones(tmp_path):
    model = timm.create_model("deit_tiny_patch16_224", depth=1)
    swap(model, "inline")
    torch.save(model.state_dict(), tmp_path / "swapped.pth")
    with pytest.raises(ValueError, match=r"swapped\.pth"):
        load_trained(str(tmp_path / "swapped.pth"))
    with pytest.raises(ValueError, match=r"swapped\.pth"):
        load_trained("deit_tiny_patch16_224", tmp_path / "swapped.pth")
