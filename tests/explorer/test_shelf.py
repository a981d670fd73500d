"""Which models the page gives, and what it makes of pictures; no browser."""

from time import perf_counter

import gradio as gr
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from inline_attention.analysis.capture import seen_by
from inline_attention.analysis.samples import SAMPLES, sample
from inline_attention.explorer.looking import attention_seconds, heads_and_layers, look, pixels_for
from inline_attention.explorer.page import Asked, answer, curves, read_picture, shown_size, telling
from inline_attention.explorer.paint import describe, paint, weights_of
from inline_attention.explorer.shelf import KEPT, OTHERS, OURS, Shelf


def test_only_runs_of_the_page_and_registered_names(tmp_path):
    """A path that someone types is not opened."""
    shelf = Shelf()
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"secret.safetensors is neither a run of this page nor a model"):
        shelf.take(str(secret))
    with pytest.raises(ValueError, match=r"inline_deit_nan is neither .*did you mean"):
        shelf.take("inline_deit_nan")
    with pytest.raises(ValueError, match=r"vit_huge_patch14_224 has 63. million parameters, and the page makes at most 120"):
        shelf.take("vit_huge_patch14_224")
    with pytest.raises(ValueError, match="cannot be read"):
        Shelf([str(secret)])


def test_models_are_kept_but_not_all():
    shelf = Shelf(["inline_swin_nano"])
    assert shelf.first() == ["inline_swin_nano"]
    assert shelf.choices()[0] == "inline_swin_nano"
    first = shelf.take("inline_deit_nano")
    assert shelf.take("inline_deit_nano") is first
    for number in range(KEPT):
        shelf._held[f"other {number}"] = first
    shelf.take("inline_pvt_nano")
    assert len(shelf._held) == KEPT


def test_offered_names_are_models():
    assert all(map(timm.is_model, (*OURS, *OTHERS)))


@pytest.mark.parametrize("name", ["inline_deit_nano", "inline_swin_nano", "deit_tiny_patch16_224"])
def test_a_look_is_the_models_own_row(name):
    shelf = Shelf()
    trained = shelf.take(name)
    picture = sample("temple")
    found = look(name, trained, picture, (0.25, 0.75), layer=2, size=96)
    layer = seen_by(trained.model, pixels_for(trained, picture, 96))[1]
    row, column = int(0.25 * layer.grid[0]), int(0.75 * layer.grid[1])
    rows = layer.rows([layer.index((row, column))])
    weights = rows.mixed[0, :, 0, layer.num_prefix_tokens :]
    shown = weights_of(found, "global", 0)
    torch.testing.assert_close(shown.flatten(), weights.mean(0) * weights.shape[-1])
    heads = weights_of(found, "global", 2)
    torch.testing.assert_close(heads.flatten(), weights[1] * weights.shape[-1])
    assert (found.number, found.trained) == (2, False)
    last = look(name, trained, picture, (0.25, 0.75), layer=99, size=96)
    assert last.number == last.layers
    assert heads_and_layers(name, trained, picture)[1] == last.layers


def test_a_map_is_painted_where_the_weights_are():
    """Red where weights are positive, blue where they are negative, a ring at the query."""
    from dataclasses import replace

    found = look("inline_deit_nano", Shelf().take("inline_deit_nano"), sample("flower"), (0.5, 0.5), layer=1, size=224)
    mixed = torch.full_like(found.map.mixed, 1 / found.map.mixed[0, 0].numel())
    even = mixed.clone()
    mixed[0, :, 0, 0], mixed[0, :, -1, -1] = 1.0, -1.0
    planted = replace(
        found, map=replace(found.map, mixed=mixed, local=None), picture=Image.new("RGB", (300, 200), (128, 128, 128))
    )
    pixels = np.asarray(paint(planted, "together", 0)).astype(int)
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
    shelf = Shelf()
    small, few = attention_seconds("inline_deit_nano", shelf.take("inline_deit_nano"), sample("flower"), 96)
    large, many = attention_seconds("inline_deit_nano", shelf.take("inline_deit_nano"), sample("flower"), 448)
    assert many > 10 * few
    assert 0 < small < large


def test_pictures_are_made_smaller_or_refused(tmp_path):
    Image.new("RGB", (3000, 1500)).save(tmp_path / "large.png")
    picture, note = read_picture(str(tmp_path / "large.png"))
    assert picture.size == (1024, 512)
    assert note == "3,000 x 1,500 pixels were made 1,024 x 512."
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(gr.Error, match="10,000 x 10,000 pixels are more than this page takes"),
    ):
        read_picture(str(tmp_path / "huge.png"))
    (tmp_path / "no.png").write_bytes(b"no picture")
    with pytest.raises(gr.Error, match="This file is not a picture that can be read here"):
        read_picture(str(tmp_path / "no.png"))
    with pytest.raises(gr.Error, match="There is no picture"):
        read_picture(None)
    with pytest.raises(gr.Error, match="was deleted after ten minutes"):
        read_picture(str(tmp_path / "gone.png"))
    Image.new("RGB", (30, 20)).save(tmp_path / "drawing.png", format="EPS")
    with pytest.raises(gr.Error, match="This file is not a picture that can be read here"):
        read_picture(str(tmp_path / "drawing.png"))


def test_a_photo_is_turned_as_the_camera_says(tmp_path):
    """What a browser shows, what is clicked on and what the models see is one picture."""
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = Image.new("RGB", (300, 200))
    lying.paste((255, 0, 0), (0, 0, 300, 20))  # along the top of the file: at the right when it stands
    lying.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    picture, _ = read_picture(str(tmp_path / "photo.jpg"))
    assert picture.size == shown_size(str(tmp_path / "photo.jpg")) == (200, 300)
    assert picture.getpixel((195, 150))[0] > 200
    assert picture.getpixel((5, 150))[0] < 50


def test_every_output_is_answered(tmp_path):
    sample("flower").save(tmp_path / "flower.png")
    shelf = Shelf()
    asked = Asked(str(tmp_path / "flower.png"), ["inline_deit_nano", "deit_tiny_patch16_224"], 0.5, 0.5, 1, 0, "together", 96)
    found = answer(shelf, asked)
    assert len(found) == 4 * 4 + 1
    assert all(isinstance(one, Image.Image) for one in curves(shelf, asked))
    assert [found[4 * place]["visible"] for place in range(4)] == [True, True, False, False]
    assert [found[4 * place + 3]["visible"] for place in range(4)] == [True, False, False, False], "who has a local kernel"
    with pytest.raises(gr.Error, match="No model is chosen"):
        answer(shelf, asked._replace(models=[]))
    with pytest.raises(gr.Error, match="no attention over the picture was seen in ResNet"):
        answer(shelf, asked._replace(models=["resnet18"]))
    for part in ("global", "local", "all layers"):
        assert len(answer(shelf, asked._replace(part=part))) == len(found)
    assert len(SAMPLES) == 3


def test_visitors_share_models_without_meeting():
    """Many looks at the same model at once are those of one after the other."""
    from concurrent.futures import ThreadPoolExecutor

    trained, picture = Shelf().take("inline_deit_nano"), sample("flower")

    def at(place):
        found = look("inline_deit_nano", trained, picture, (place / 8, 0.5), layer=1 + place % 6, size=96)
        return found.layers, found.number, found.map.mixed

    expected = [at(place) for place in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(at, [*range(8)] * 3))
    for (layers, number, mixed), (layers_alone, number_alone, alone) in zip(found, expected * 3, strict=True):
        assert (layers, number) == (layers_alone, number_alone)
        assert torch.equal(mixed, alone)


def test_pictures_come_as_uploads_only():
    """Not as data in a question, nor from elsewhere; a question is small."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    from inline_attention.explorer.guard import LARGEST_QUESTION, Guard

    async def echo(request):
        return PlainTextResponse(str(len(await request.body())))

    routes = [Route("/join", echo, methods=["GET", "POST"]), Route("/upload", echo, methods=["POST"])]
    client = TestClient(Starlette(routes=routes, middleware=[Middleware(Guard)]))
    good = {"data": [{"path": "/tmp/a.png", "url": "http://127.0.0.1:7860/file=/tmp/a.png"}]}
    assert client.post("/join", json=good).status_code == 200
    assert client.post("/join", content=b"x" * LARGEST_QUESTION).text == str(LARGEST_QUESTION)
    assert client.get("/join").text == "0"
    for where in ("http://10.0.0.1/a.png", "HTTPS://example.org/a.png", "data:image/png;base64,AAAA", "file:///etc/passwd"):
        assert client.post("/join", json={"data": [{"path": where}]}).status_code == 400, where
    assert client.post("/join", content=b"x" * (LARGEST_QUESTION + 1)).status_code == 400
    assert client.post("/upload", content=b"x" * (LARGEST_QUESTION + 1)).status_code == 200

    class Payload:
        path, url = None, "data:image/png;base64,AAAA"

    with pytest.raises(gr.Error, match="as uploads only"):
        telling(lambda payload: payload)(Payload)


def test_an_answer_takes_less_than_a_second(tmp_path):
    """Two models at 224, one of them nano: the best of five, after the first."""
    sample("flower").save(tmp_path / "flower.png")
    shelf = Shelf()
    asked = Asked(str(tmp_path / "flower.png"), ["inline_deit_nano", "deit_tiny_patch16_224"], 0.5, 0.5, 1, 0, "together", 224)
    times = []
    for place in range(6):
        start = perf_counter()
        answer(shelf, asked._replace(down=place / 6))
        times.append(perf_counter() - start)
    assert min(times[1:]) < 1, times
