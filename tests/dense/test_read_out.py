"""Classes a few at a time, against all at once."""

import pytest
import torch
import torch.nn.functional as F

from inline_attention.dense.pyramid import make_pyramid
from inline_attention.dense.read_out import AT_ONCE, read_out
from inline_attention.dense.segmenter import Segmenter, grown


@pytest.mark.parametrize("classes", [2, AT_ONCE, 3 * AT_ONCE + 1])
def test_labels_and_loss_are_those_of_the_whole(classes):
    logits, truth = torch.randn(classes, 5, 7), torch.randint(0, classes, (10, 14))
    truth[0, :5] = 255

    def grow(part):
        return F.interpolate(part[None], (10, 14), mode="bilinear")[0]

    found = read_out(logits, grow, truth)
    whole = grow(logits)
    assert torch.equal(found.labels, whole.argmax(0))
    assert found.loss == pytest.approx(
        float(F.cross_entropy(whole[None], truth[None], ignore_index=255, reduction="sum")), rel=1e-5
    )
    assert read_out(logits, grow).loss == 0


def test_a_segmenters_coarse_logits_grow_to_its_own():
    model, pixels = Segmenter(make_pyramid("inline_pvt_nano", {}), "upernet", 5, width=32).eval(), torch.randn(2, 3, 45, 70)
    with torch.no_grad():
        torch.testing.assert_close(grown(model.coarse(pixels), (45, 70)), model(pixels))
