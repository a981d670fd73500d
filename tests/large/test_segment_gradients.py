"""A segmenter's loss and gradients in bands are those of the whole image."""

import pytest
import torch
import torch.nn.functional as F

from inline_attention.dense.segmenter import SEGMENTERS
from inline_attention.large import replay, segment_pass
from inline_attention.large.segment_gradients import freeze_batch_norms, stream_segment_loss

from .test_gradients import close, gradients_of
from .test_stream_segment import made

SIZE = (45, 70)


def pair(size=SIZE, seed=1):
    """An image and its labels, some of which are ignored."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 6, size, generator=generator)
    return torch.randn(1, 3, *size, dtype=torch.float64, generator=generator), labels.masked_fill(labels == 5, 255)


def check(segmenter, image, labels, *, mask=None, **options):
    torch.manual_seed(3)
    outputs = segmenter(image) if mask is None else segmenter(image, mask)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    counted = labels[None] if mask is None else labels[None].masked_fill(~mask, 255)
    losses = [F.cross_entropy(logits, counted, ignore_index=255) for logits in outputs]
    loss = losses[0] + sum(0.4 * more for more in losses[1:])
    loss.backward()
    expected = gradients_of(segmenter)
    segmenter.zero_grad()
    torch.manual_seed(3)
    found = stream_segment_loss(segmenter, image, labels, mask=None if mask is None else mask[0], **options)
    found.backward()
    torch.testing.assert_close(found, loss, rtol=1e-10, atol=1e-10)
    close(gradients_of(segmenter), expected, 1e-9)


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize(
    ("backbone", "size", "tokens"),
    [("pvt", SIZE, 1), ("swin", (70, 45), 60), ("windows", SIZE, 10**6), ("deit", (70, 33), 20)],
)
def test_gradients_are_those_of_the_whole_image(head, backbone, size, tokens):
    check(made(head, backbone, size=size), *pair(size), tokens=tokens)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_in_training_mode(head):
    """Drop path, dropped channels, the auxiliary head, maps that are computed again, and memory in place of files."""
    segmenter = made(head, size=SIZE, drop_path_rate=0.3).train()
    freeze_batch_norms(segmenter)
    calls = []
    check(segmenter, *pair(), tokens=40, keep=1, folder="memory", progress=lambda *now: calls.append(now))
    assert calls[-1][0] == calls[-1][1]


@pytest.mark.parametrize("head", SEGMENTERS)
def test_with_a_mask(head):
    mask = torch.rand(1, *SIZE, generator=torch.Generator().manual_seed(0)) > 0.3
    mask[:, 8:33] = False
    image, labels = pair()
    check(made(head, "windows", size=SIZE), image.masked_fill(~mask.unsqueeze(1), torch.nan), labels, mask=mask, tokens=1)


@pytest.mark.parametrize("frozen", ["backbone", "decoder"])
def test_frozen_parts(frozen):
    segmenter = made("semantic_fpn", size=SIZE)
    getattr(segmenter, frozen).requires_grad_(False)
    check(segmenter, *pair(), tokens=60)


def test_mutants_are_found(monkeypatch):
    """Moments without a gradient, totals without one, and a map that is written without one."""
    segmenters = {head: made(head, size=SIZE) for head in SEGMENTERS}
    whole, result = replay._gradient_of_written, replay.ReplayedSweeps.result

    def of_file_only(record, start, stop):
        return whole(replay.replace(record, gradients=[torch.zeros_like(each) for each in record.gradients]), start, stop)

    def no_totals(self, number, limits):
        outputs, gradients = result(self, number, limits)
        return outputs, [torch.zeros_like(each) for each in gradients] if self.functions[number] else gradients

    for head, mutant in (
        ("semantic_fpn", (replay, "_gradient_of_written", of_file_only)),
        ("semantic_fpn", (segment_pass.SegmentPass, "_back_from_sweep", lambda *_: None)),
        ("upernet", (replay.ReplayedSweeps, "result", no_totals)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*mutant)
            with pytest.raises(AssertionError):
                check(segmenters[head], *pair(), tokens=40)


def test_refused():
    segmenter = made("upernet", size=SIZE).train()
    image, labels = pair()
    with pytest.raises(ValueError, match=r"normalises over the batch, which is one image in parts: call freeze_batch_norms"):
        stream_segment_loss(segmenter, image, labels)
    segmenter.eval()
    with pytest.raises(ValueError, match=r"labels must be \(height, width\) = \(45, 70\), got \(3, 3\)"):
        stream_segment_loss(segmenter, image, labels[:3, :3])
    with pytest.raises(ValueError, match="rows 0 to 44 of the labels must be whole numbers"):
        stream_segment_loss(segmenter, image, labels.double(), tokens=10**6)
    with pytest.raises(ValueError, match="labels are an array"):
        stream_segment_loss(segmenter, image, "labels.png")
    loss = stream_segment_loss(segmenter, image, labels.numpy())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward pass was done before"):
        loss.backward()
    unlabelled = stream_segment_loss(segmenter, image, lambda start, stop: labels[start:stop] * 0 + 255)
    assert float(unlabelled.detach()) == 0
