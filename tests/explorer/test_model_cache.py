"""Which models the page gives, and what it makes of images; no browser."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import perf_counter

import gradio as gr
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from inline_attention.analysis.capture import capture_pass
from inline_attention.analysis.sample_images import SAMPLES, sample_image
from inline_attention.explorer.answers import (
    PageState,
    RunningAnswers,
    answer,
    check_upload,
    curves,
    displayed_size,
    read_image,
)
from inline_attention.explorer.inspect import attention_seconds, heads_and_layers, inspect_point, pixels_for
from inline_attention.explorer.model_cache import CACHE_SIZE, OTHERS, OURS, ModelCache
from inline_attention.explorer.render import describe, draw_map, weights_of
from inline_attention.training import model_factory

TWO = ["inline_deit_nano", "deit_tiny_patch16_224"]


def test_only_runs_of_the_page_and_registered_names(tmp_path):
    """A path that someone types is not opened."""
    model_cache = ModelCache()
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"secret.safetensors is neither a run of this page nor a model"):
        model_cache.take(str(secret))
    with pytest.raises(ValueError, match=r"inline_deit_nan is neither .*did you mean"):
        model_cache.take("inline_deit_nan")
    with pytest.raises(ValueError, match=r"vit_huge_patch14_224 has 63. million parameters, and the page makes at most 120"):
        model_cache.take("vit_huge_patch14_224")
    with pytest.raises(ValueError, match="cannot be read"):
        ModelCache([str(secret)])


def test_models_are_kept_but_not_all():
    model_cache = ModelCache(["inline_swin_nano"])
    assert model_cache.first() == ["inline_swin_nano"]
    assert model_cache.choices()[0] == "inline_swin_nano"
    first = model_cache.take("inline_deit_nano")
    assert model_cache.take("inline_deit_nano") is first
    for number in range(CACHE_SIZE):
        model_cache._cache[f"other {number}"] = first
    model_cache.take("inline_pvt_nano")
    assert len(model_cache._cache) == CACHE_SIZE


def test_offered_names_are_models():
    assert all(map(timm.is_model, (*OURS, *OTHERS)))


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_swin_nano", "deit_tiny_patch16_224"])
def test_an_inspection_has_the_models_own_weights(name):
    model_cache = ModelCache()
    trained = model_cache.take(name)
    image = sample_image("temple")
    found = inspect_point(name, trained, image, (0.25, 0.75), layer=2, size=96)
    layer = capture_pass(trained.model, pixels_for(trained, image, 96))[1]
    row, column = int(0.25 * layer.grid[0]), int(0.75 * layer.grid[1])
    rows = layer.rows([layer.index((row, column))])
    weights = rows.mixed[0, :, 0, layer.num_prefix_tokens :]
    shown = weights_of(found, "global", 0)
    torch.testing.assert_close(shown.flatten(), weights.mean(0) * weights.shape[-1])
    heads = weights_of(found, "global", 2)
    torch.testing.assert_close(heads.flatten(), weights[1] * weights.shape[-1])
    assert (found.number, found.trained) == (2, False)
    last = inspect_point(name, trained, image, (0.25, 0.75), layer=99, size=96)
    assert last.number == last.layers
    assert heads_and_layers(name, trained, image)[1] == last.layers


def test_a_map_is_coloured_where_the_weights_are():
    """Red where weights are positive, blue where they are negative, a ring at the query."""
    from dataclasses import replace

    found = inspect_point(
        "inline_deit_nano", ModelCache().take("inline_deit_nano"), sample_image("flower"), (0.5, 0.5), layer=1, size=224
    )
    mixed = torch.full_like(found.map.mixed, 1 / found.map.mixed[0, 0].numel())
    even = mixed.clone()
    mixed[0, :, 0, 0], mixed[0, :, -1, -1] = 1.0, -1.0
    planted = replace(
        found, map=replace(found.map, mixed=mixed, local=None), image=Image.new("RGB", (300, 200), (128, 128, 128))
    )
    pixels = np.asarray(draw_map(planted, "together", 0)).astype(int)
    assert pixels[2, 2, 0] > pixels[2, 2, 2] + 60, "red"
    assert pixels[-3, -3, 2] > pixels[-3, -3, 0] + 60, "blue"
    middle = pixels[pixels.shape[0] // 2, -3]
    assert middle.max() - middle.min() < 3, "grey where there is nothing"
    said = describe(planted, "together", 0)
    assert f" {100 * 9 / (194 + 2 * 196):.0f} % of the weight, whatever the sign, is on the 3 x 3 tokens around it." in said
    y, x = planted.map.query
    mixed.sub_(even)
    mixed[0, :, 0, 0], mixed[0, :, -1, -1], mixed[0, :, y, x + 1] = 1.0, -1.0, 2.0
    assert " 50 % of the weight, whatever the sign, is on the 3 x 3 tokens around it." in describe(planted, "together", 0)
    assert "row 1, column 1" in said
    assert "Untrained" in said
    assert "no local part" in describe(planted, "local", 0)


def test_times_are_those_of_attention():
    model_cache = ModelCache()
    small, few = attention_seconds(
        "inline_deit_nano", model_cache.take("inline_deit_nano"), sample_image("flower"), 96, rounds=5
    )
    large, many = attention_seconds(
        "inline_deit_nano", model_cache.take("inline_deit_nano"), sample_image("flower"), 448, rounds=5
    )
    assert many > 10 * few
    assert 0 < small < large


def test_images_are_made_smaller_or_refused(tmp_path):
    Image.new("RGB", (3000, 1500)).save(tmp_path / "large.png")
    image, note = read_image(str(tmp_path / "large.png"))
    assert image.size == (1024, 512)
    assert note == "3,000 x 1,500 pixels were made 1,024 x 512."
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    with pytest.raises(gr.Error, match="10,000 x 10,000 pixels are more than this page takes"):
        read_image(str(tmp_path / "huge.png"))
    (tmp_path / "no.png").write_bytes(b"no image")
    with pytest.raises(gr.Error, match="This file is not an image that can be read here"):
        read_image(str(tmp_path / "no.png"))
    with pytest.raises(gr.Error, match="There is no image"):
        read_image(None)
    with pytest.raises(gr.Error, match="was deleted after ten minutes"):
        read_image(str(tmp_path / "gone.png"))
    Image.new("RGB", (30, 20)).save(tmp_path / "drawing.png", format="EPS")
    with pytest.raises(gr.Error, match="This file is not an image that can be read here"):
        read_image(str(tmp_path / "drawing.png"))


def test_a_photo_is_turned_as_the_camera_says(tmp_path):
    """What a browser shows, what is clicked on and what the models see is one image."""
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.new("RGB", (300, 200))
    lying.paste((255, 0, 0), (0, 0, 300, 20))  # along the top of the file: at the right when it stands
    lying.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    image, _ = read_image(str(tmp_path / "photo.jpg"))
    assert image.size == displayed_size(str(tmp_path / "photo.jpg")) == (200, 300)
    assert image.getpixel((195, 150))[0] > 200
    assert image.getpixel((5, 150))[0] < 50


def test_every_output_is_answered(tmp_path):
    sample_image("flower").save(tmp_path / "flower.png")
    model_cache = ModelCache()
    asked = PageState(
        str(tmp_path / "flower.png"), ["inline_deit_nano", "deit_tiny_patch16_224"], 0.5, 0.5, 1, 0, "together", 96
    )
    found = answer(model_cache, asked)
    assert len(found) == 4 * 4 + 1
    assert all(isinstance(one, Image.Image) for one in curves(model_cache, asked))
    assert [found[4 * place]["visible"] for place in range(4)] == [True, True, False, False]
    assert [found[4 * place + 3]["visible"] for place in range(4)] == [True, False, False, False], "who has a local kernel"
    with pytest.raises(gr.Error, match="No model is chosen"):
        answer(model_cache, asked._replace(models=[]))
    with pytest.raises(gr.Error, match="no attention over the image was found in ResNet"):
        answer(model_cache, asked._replace(models=["resnet18"]))
    for part in ("global", "local", "all layers"):
        assert len(answer(model_cache, asked._replace(part=part))) == len(found)
    assert SAMPLES[-1] == "digit"


def test_a_page_without_a_server_of_weights(tmp_path, monkeypatch):
    def unreachable(_):
        raise ConnectionError("the weights cannot be downloaded")

    monkeypatch.setattr(model_factory, "fetch_weights", unreachable)
    sample_image("digit").save(tmp_path / "digit.png")
    asked = PageState(str(tmp_path / "digit.png"), ["inline_deit_tiny"], 0.5, 0.5, 1, 0, "together", 96)
    with pytest.raises(gr.Error, match="the weights cannot be downloaded"):
        answer(ModelCache(["inline_deit_tiny"], pretrained=True), asked)
    assert ModelCache().first_sample() == "digit"
    assert ModelCache(["inline_deit_nano"]).first_sample() == "flower"


def test_visitors_share_models_without_mixing_answers():
    """Many looks at the same model at once are those of one after the other."""
    trained, image = ModelCache().take("inline_deit_nano"), sample_image("flower")

    def at(place):
        found = inspect_point("inline_deit_nano", trained, image, (place / 8, 0.5), layer=1 + place % 6, size=96)
        return found.layers, found.number, found.map.mixed

    expected = [at(place) for place in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(at, [*range(8)] * 3))
    for (layers, number, mixed), (layers_alone, number_alone, alone) in zip(found, expected * 3, strict=True):
        assert (layers, number) == (layers_alone, number_alone)
        assert torch.equal(mixed, alone)


def test_images_are_not_taken_as_data_in_a_question():
    class Payload:
        path, url = None, "data:image/png;base64,AAAA"

    with pytest.raises(gr.Error, match="as uploads only"):
        check_upload(lambda payload: payload)(Payload)


def test_an_answer_takes_less_than_a_second(tmp_path):
    """Two models at 224, one of them nano: the best of five, after the first."""
    sample_image("flower").save(tmp_path / "flower.png")
    model_cache = ModelCache()
    asked = PageState(
        str(tmp_path / "flower.png"), ["inline_deit_nano", "deit_tiny_patch16_224"], 0.5, 0.5, 1, 0, "together", 224
    )
    times = []
    for place in range(6):
        start = perf_counter()
        answer(model_cache, asked._replace(down=place / 6))
        times.append(perf_counter() - start)
    assert min(times[1:]) < 1, times


def test_the_end_waits_for_answers_that_are_being_computed():
    running, begun, go_on = RunningAnswers(), Event(), Event()

    @running.counted
    def slow(value):
        begun.set()
        assert go_on.wait(10)
        return value + 1

    with ThreadPoolExecutor() as pool:
        found = pool.submit(slow, 1)
        assert begun.wait(10)
        running.check()
        assert not running.close(0.01)
        with pytest.raises(gr.Error, match="The server is ending"):
            running.check()
        go_on.set()
        assert running.close(10)
        assert found.result() == 2

    @running.counted
    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert running.close(0)
