"""The gradients of an image in bands are those of the whole image; and what is wrong in a training pass is found."""

import pytest
import torch
from timm.models import create_model
from torch import nn

from inline_attention import MIXERS
from inline_attention.large import band_step
from inline_attention.large.gradients import stream_backward, stream_train
from inline_attention.large.stage_map import GradientRows
from inline_attention.layers import Block
from inline_attention.layers.summary import Summary

ODD = (45, 70)
PYRAMID = {"patch_size": 2, "depths": (1, 1, 2, 1)}
SMALL = {
    "inline_deit_nano": {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8},
    "inline_pvt_nano": PYRAMID,
    "inline_swin_nano": PYRAMID,
    "inline_cswin_nano": PYRAMID,
}


def made(name, size=ODD, dtype=torch.float64, *, train=False, **options):
    """A model whose weights are large enough that every part of it matters."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=5, img_size=size, **SMALL.get(name, {}) | options).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.train(train)


def image_of(size=ODD, dtype=torch.float64, seed=1):
    return torch.randn(1, 3, *size, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def loss_of(logits):
    """It weighs the classes unequally, and is not linear."""
    return logits.logsumexp(1).sum() + (logits * torch.arange(5).to(logits)).square().sum()


def gradients_of(model):
    return {name: None if parameter.grad is None else parameter.grad.clone() for name, parameter in model.named_parameters()}


def plain_gradients(model, image, mask=None):
    model.zero_grad()
    torch.manual_seed(3)
    loss = loss_of(model(image) if mask is None else model(image, mask))
    loss.backward()
    found = gradients_of(model)
    model.zero_grad()
    torch.manual_seed(3)
    return loss.detach(), found


def close(ours, theirs, tolerance):
    """Each parameter's gradient, to a share of its largest; and none where plain backward gives none."""
    largest = max(float(theirs[name].abs().max()) for name in theirs if theirs[name] is not None)
    for name, expected in theirs.items():
        assert (ours[name] is None) == (expected is None), name
        if expected is not None:
            scale = max(float(expected.abs().max()), 1e-6 * largest)  # some are zero but for rounding
            assert float((ours[name] - expected).abs().max()) <= tolerance * scale, name


def check(model, image, *, mask=None, tolerance=1e-9, **options):
    loss, expected = plain_gradients(model, image, mask)
    found = stream_backward(model, image, loss_of, mask=None if mask is None else mask[0], **options)
    torch.testing.assert_close(found.loss, loss, rtol=tolerance, atol=tolerance)
    close(gradients_of(model), expected, tolerance)


ALL_LINEAR = {"inline_depths": (1, 1, 2, 1)}


@pytest.mark.parametrize(
    ("name", "options", "size", "tokens"),
    [
        pytest.param("inline_deit_nano", {}, ODD, 15, id="deit"),
        pytest.param("inline_deit_nano", {"global_pool": "avg", "kernel": "relu_affine"}, (96, 33), 1, id="deit-avg"),
        pytest.param("inline_deit_nano", {"global_pool": "avgmax", "rope": "heads"}, (32, 40), 10**6, id="deit-avgmax-rope"),
        pytest.param("inline_pvt_nano", {}, ODD, 40, id="pvt"),
        pytest.param("inline_pvt_nano", {"class_token": True, "kernel": "relu"}, (70, 33), 1, id="pvt-class-token"),
        pytest.param("inline_swin_nano", ALL_LINEAR, ODD, 25, id="swin-linear"),
        pytest.param("inline_cswin_nano", ALL_LINEAR, ODD, 1, id="cswin-linear"),
        pytest.param("inline_swin_nano", {}, (50, 66), 60, id="swin-windows"),
        pytest.param("inline_cswin_nano", {}, (66, 50), 1, id="cswin-stripes"),
    ],
)
def test_gradients_are_those_of_the_whole_image(name, options, size, tokens):
    check(made(name, size, **options), image_of(size), tokens=tokens)


@pytest.mark.parametrize("mixer", MIXERS)
def test_of_every_mixer(mixer):
    check(made("inline_deit_nano", mixer=mixer, depth=2), image_of(), tokens=7)


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_pvt_nano", "inline_swin_nano", "inline_cswin_nano"])
def test_with_a_mask(name):
    """Garbage where masked, and whole bands without a valid token."""
    mask = torch.rand(1, *ODD, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[:, 16:32] = False
    check(made(name), image_of().masked_fill(~mask.unsqueeze(1), torch.nan), mask=mask, tokens=1, keep=1)


@pytest.mark.parametrize("keep", [0, 2, 100])
def test_inputs_that_are_not_kept_are_computed_again(keep):
    check(made("inline_pvt_nano", (33, 40)), image_of((33, 40)), tokens=60, keep=keep)


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_cswin_nano"])
def test_drop_path_drops_what_it_drops_in_the_usual_pass(name):
    check(made(name, train=True, drop_path_rate=0.4), image_of(), tokens=9, keep=2)


def test_dropout_draws_the_same_when_a_band_is_computed_again():
    """The gradient is that of the loss, along a direction in the space of the parameters."""
    model = made("inline_deit_nano", train=True, drop_path_rate=0.3, proj_drop_rate=0.2, drop_rate=0.2)

    def loss(keep=None):
        torch.manual_seed(5)
        return loss_of(stream_train(model, image_of(), tokens=9, keep=keep))

    loss(keep=1).backward()
    direction = [torch.randn_like(parameter) for parameter in model.parameters()]
    along = sum((parameter.grad * way).sum() for parameter, way in zip(model.parameters(), direction, strict=True))
    ends = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for parameter, way in zip(model.parameters(), direction, strict=True):
                parameter += step * way
            ends.append(loss())
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-6, along, rtol=1e-5, atol=1e-5)


def test_published_models_in_fp32():
    model = made("inline_pvt_tiny", (160, 96), torch.float32)
    check(model, image_of((160, 96), torch.float32), tokens=64, tolerance=1e-3)


def test_autocast_of_the_forward_pass_holds_in_the_backward_pass():
    model, image = made("inline_pvt_nano", dtype=torch.float32), image_of(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, expected = plain_gradients(model, image)
        logits = stream_train(model, image, tokens=30)
    assert logits.dtype == torch.bfloat16
    loss_of(logits).backward()
    torch.testing.assert_close(loss_of(logits).float(), loss.float(), rtol=0.05, atol=0.05)
    ours = gradients_of(model)
    flat = [torch.cat([each[name].flatten() for name in expected]) for each in (ours, expected)]
    assert float(torch.cosine_similarity(*flat, dim=0)) > 0.999


def test_gradients_add_up_over_images_and_losses():
    model = made("inline_deit_nano", depth=2)
    images = [image_of(seed=1), image_of((64, 32), seed=2)]
    model.set_input_size(ODD)
    for image in images:
        logits = model(image)
        (loss_of(logits) + logits.sum()).backward()
    expected = gradients_of(model)
    model.zero_grad()
    for image in images:
        logits = stream_train(model, image, tokens=8)
        (loss_of(logits) + logits.sum()).backward()
    close(gradients_of(model), expected, 1e-6)  # positions are resampled in fp32


@pytest.mark.parametrize("learning", ["head", "norm", "stages.2.blocks.1", "stages.1.embed", "stages.3"])
def test_frozen_parts(learning):
    model = made("inline_swin_nano", **ALL_LINEAR)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith((learning, "head")))
    check(model, image_of(), tokens=20, keep=1)


def test_autograd_grad():
    model = made("inline_deit_nano", depth=1)
    _, expected = plain_gradients(model, image_of())
    found = torch.autograd.grad(loss_of(stream_train(model, image_of(), tokens=3)), list(model.parameters()))
    close(dict(zip(expected, found, strict=True)), expected, 1e-9)


def test_hooks_of_parameters_see_whole_gradients_or_are_refused():
    model, calls = made("inline_deit_nano", depth=1), []
    weight = model.stages[0].blocks[0].mixer.q.weight
    weight.register_post_accumulate_grad_hook(calls.append)
    stream_train(model, image_of(), tokens=3).sum().backward()
    assert len(calls) == 1
    weight.register_hook(lambda gradient: gradient / 2)
    with pytest.raises(ValueError, match=r"stages.0.blocks.0.mixer.q.weight has a hook that would see gradients of parts"):
        stream_train(model, image_of())


def test_without_gradients_nothing_is_kept():
    model = made("inline_pvt_nano")
    with torch.no_grad():
        logits = stream_train(model, image_of(), tokens=20)
    torch.testing.assert_close(logits, model(image_of()), rtol=1e-10, atol=1e-10)
    assert not logits.requires_grad


def test_maps_in_memory():
    check(made("inline_cswin_nano"), image_of(), tokens=20, folder="memory")


def test_progress_counts_every_band():
    calls = []
    model = made("inline_swin_nano", (33, 40))
    stream_backward(model, image_of((33, 40)), loss_of, tokens=20, keep=1, progress=lambda *now: calls.append(now))
    done, total = zip(*calls, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == total[-1]


def test_no_block_sees_more_than_a_band_and_its_neighbours(monkeypatch):
    seen = []
    respond = Block.respond
    monkeypatch.setattr(
        Block, "respond", lambda self, x, *rest, **more: (seen.append(x.shape[1]), respond(self, x, *rest, **more))[1]
    )
    size = (400, 40)
    stream_backward(made("inline_deit_nano", size, patch_size=4, depth=1), image_of(size), loss_of, tokens=30)
    assert max(seen) == (3 + 2) * 10


# What a wrong implementation would do: each of these must be found


def _without_halo(self, band, gradient):
    GradientRows_replace(self, band._replace(halo=(0, 0)), gradient[:, band.halo[0] : gradient.shape[1] - band.halo[1]])


GradientRows_replace = GradientRows.replace


def _not_summed(self, outputs, gradients_, tokens, known, totals, *, counted=True):
    before = [list(total) for total in totals]
    own = _back(self, outputs, gradients_, tokens, known, totals, counted=counted)
    for total, old in zip(totals, before, strict=True):
        total[:] = [new - earlier for new, earlier in zip(total, old, strict=True)]
    return own


_back = band_step.BandStep._back

MUTANTS = {
    "wrong halo": (GradientRows, "replace", _without_halo),
    "no second pass": (band_step.BandStep, "_back_through_sums", lambda *_: None),
    "summary not summed": (band_step.BandStep, "_back", _not_summed),
    "maxima not common": (Summary, "on_scale", lambda self, _: self),
}


@pytest.mark.parametrize("mutant", ["wrong halo", "no second pass", "summary not summed", "maxima not common"])
def test_mutants_are_found(mutant, monkeypatch):
    model = made("inline_deit_nano", mixer="efficient", local=True, depth=2)
    check(model, image_of(), tokens=7)
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(AssertionError):
        check(model, image_of(), tokens=7)


# What is refused


def test_refused():
    model = made("inline_deit_nano", depth=1)
    with pytest.raises(ValueError, match="keep must be a whole number from 0 on, or None for all, got -1"):
        stream_train(model, image_of(), keep=-1)
    with pytest.raises(ValueError, match="tokens must be at least 1, got 0"):
        stream_train(model, image_of(), tokens=0)
    with pytest.raises(ValueError, match="stream_train needs one of this package's models"):
        stream_train(nn.Linear(2, 2), image_of())
    dropping = made("inline_deit_nano", depth=1, attn_drop_rate=0.1, train=True)
    with pytest.raises(ValueError, match=r"stages.0.blocks.0 has attn_drop=0.1; set it to 0"):
        stream_train(dropping, image_of())
    with pytest.raises(ValueError, match="gradients of the image are not computed"):
        stream_train(model, image_of().requires_grad_())
    loss = loss_of(stream_train(model, image_of(), tokens=4))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward pass was done before"):
        loss.backward()
