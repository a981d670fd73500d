"""The tab of an image that is larger than memory."""

import numpy as np
import pytest
import torch
from gradio import Error
from PIL import Image
from playwright.sync_api import expect

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.maps import query_map
from inline_attention.data.transforms import normalisation
from inline_attention.explorer import large_view
from inline_attention.explorer.answers import RunningAnswers
from inline_attention.explorer.large_view import LargeView
from inline_attention.explorer.model_cache import ModelCache
from inline_attention.explorer.render import overlay
from inline_attention.large.open_large_image import open_large_image

from .server import running_server
from .test_browser import CHROMIUM, browser

__all__ = ["browser"]
SIZE = (96, 160)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "image.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8))
    return path


def test_its_maps_are_the_dense_rows_and_are_kept(path):
    view = LargeView("image", lambda: open_large_image(path), Image.new("RGB", SIZE[::-1]))
    models, calls = ModelCache(["inline_pvt_nano"]), []
    found = view.maps(models, "inline_pvt_nano", (0.3, 0.8), lambda *done: calls.append(done))
    trained = models.take("inline_pvt_nano")
    mean, std = (torch.tensor(part) for part in normalisation(trained.data))
    image = ((torch.from_numpy(np.load(path)) / 255 - mean) / std).permute(2, 0, 1)[None]
    with torch.no_grad():
        layers = capture_pass(trained.model, image).layers
    assert len(found) == len(layers)
    for one, layer in zip(found, layers, strict=True):
        torch.testing.assert_close(one.together, query_map(layer, layer.place((0.3, 0.8))).together, rtol=1e-3, atol=1e-6)
    before = len(calls)
    assert view.maps(models, "inline_pvt_nano", (0.3, 0.8), lambda *done: calls.append(done)) is found
    assert len(calls) == before > 0
    drawn, words = view.draw(found, 99, 0)
    assert words == "stage 3, block 0, 3 x 5 tokens"
    assert drawn.size[0] > drawn.size[1]


def test_what_cannot_be_answered_is_one_line(path):
    view = LargeView("image", lambda: open_large_image(path), Image.new("RGB", SIZE[::-1]))
    answer = large_view._answer(view, ModelCache(["inline_pvt_nano"]), RunningAnswers())
    for labels, told in (([], "No model is chosen"), (["vit_tiny_patch16_224"], "needs one of this package's models")):
        with pytest.raises(Error, match=told):
            answer(0.5, 0.5, labels, 1, 0)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt install chromium")
def test_a_click_on_the_thumbnail_is_answered(path, browser, tmp_path):
    with running_server(tmp_path, "inline_pvt_nano", "--image", str(path)) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.goto(address)
        expect(page.locator("#map0 img")).to_be_visible(timeout=30_000)
        page.get_by_role("tab", name="The whole of image.npy").click()
        image = page.locator("#large img").first
        expect(image).to_be_visible()
        box = image.bounding_box()
        image.click(position={"x": 0.75 * box["width"], "y": 0.25 * box["height"]})
        expect(page.locator("#large-maps img").first).to_be_visible(timeout=30_000)
        assert abs(float(page.locator("#large-across input[type=number]").input_value()) - 0.75) < 0.02
        assert abs(float(page.locator("#large-down input[type=number]").input_value()) - 0.25) < 0.02
        page.close()


def test_places_beyond_the_image_are_cut():
    """Three places over an image that has two and a half of them: red, grey from 40 to 80 % of the width, and blue."""
    drawn = np.asarray(overlay(Image.new("L", (50, 20)), torch.tensor([[1.0, 0, -1]]), (0, 0), (1, 3), (1.0, 1.2))).astype(int)
    for share, sign in ((0.38, 1), (0.42, 0), (0.78, 0), (0.82, -1), (0.99, -1)):
        red, _, blue = drawn[-10, int(share * drawn.shape[1])]
        assert np.sign(red - blue) == sign
