"""Which requests reach the page, and which do not."""

import json
import logging

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from inline_attention.explorer.address import Address
from inline_attention.explorer.request_filter import API_PATHS, LARGEST_REQUEST, LARGEST_UPLOAD, UPLOAD, RequestFilter

JOIN = API_PATHS[0]


async def echo(request):
    return PlainTextResponse(await request.body())


async def fails(request):
    raise KeyError("nothing\nof that name")


ROUTES = [Route(path, echo, methods=["POST"]) for path in (UPLOAD, *API_PATHS)]


@pytest.fixture(scope="module")
def client():
    app = Starlette(routes=[*ROUTES, Route("/fails", fails), Route("/{path:path}", echo)])
    with TestClient(RequestFilter(app, Address("127.0.0.1", 7860)), "http://127.0.0.1:7860") as opened:
        yield opened


@pytest.mark.parametrize(
    "where", ["http://10.0.0.1/a", " HTTPS://example.org/a", "data:image/png;base64,AA", "file:///etc/passwd"]
)
def test_a_file_elsewhere_is_refused_however_it_is_written(client, where):
    plain = json.dumps({"data": [{"deep": [{"path": where}]}]})
    for body in (plain.encode(), plain.replace("path", r"\u0070ath").encode(), plain.encode("utf-16"), plain.encode("utf-32")):
        assert client.post(JOIN, content=body).status_code == 400, body
    assert client.get(f"/gradio_api/file={where}").status_code == 400
    assert client.get(f"/gradio_api/proxy={where}").status_code == 400


def test_what_the_page_sends_is_passed_on(client):
    good = {"data": [{"path": "/tmp/a.png", "url": "http://127.0.0.1:7860/file=/tmp/a.png"}, 0.5, None]}
    assert client.post(JOIN, json=good, headers={"Origin": "http://127.0.0.1:7860"}).json() == good
    assert client.post(JOIN, content=rb'{"a": 1, "a": "\u0070"}').text == '{"a": "p"}', "as it was understood here"
    assert client.get("/gradio_api/file=/tmp/a.png").status_code == 200
    assert client.get("/gradio_api/file=C:/a.png").status_code == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 60_000, b"\xff", b'{"data": nan'])
def test_what_is_no_json_is_refused(client, body):
    assert client.post(JOIN, content=body).status_code == 400


def test_only_the_page_s_own_requests(client):
    for path in ("/gradio_api/run/upload", "/gradio_api/upload/", "/gradio_api/call/time", "/gradio_api/vibe-edit"):
        assert client.post(path, json={}).status_code == 405, path
    assert client.options(JOIN).status_code == client.put(JOIN).status_code == 405


def test_bytes_are_counted_as_they_come(client):
    """With and without a Content-Length."""

    def chunks(size):
        for begin in range(0, size, 2**16):
            yield b" " * min(2**16, size - begin)

    for path, limit in ((JOIN, LARGEST_REQUEST), (UPLOAD, LARGEST_UPLOAD)):
        assert client.post(path, content=b" " * (limit + 1)).status_code == 413
        assert client.post(path, content=chunks(limit + 1)).status_code == 413
    assert len(client.post(UPLOAD, content=chunks(LARGEST_UPLOAD)).content) == LARGEST_UPLOAD
    assert client.post(JOIN, content=b"{}".ljust(LARGEST_REQUEST)).text == "{}"


@pytest.mark.parametrize("origin", ["http://evil", "null", "http://localhost:9999", "https://127.0.0.1:7860", "file://"])
def test_other_sites_are_refused(client, origin):
    for answered in (
        client.get("/config", headers={"Origin": origin}),
        client.post(JOIN, content=b"{}", headers={"Origin": origin}),
        client.options(JOIN, headers={"Origin": origin, "Access-Control-Request-Method": "POST"}),
    ):
        assert answered.status_code == 403
        assert not any(name.startswith("access-control") for name in answered.headers)


def test_other_names_are_refused(client):
    assert client.get("/config", headers={"Host": "localhost:7860"}).status_code == 200
    assert client.get("/config", headers={"Host": "evil.com:7860"}).status_code == 403


def test_what_fails_is_one_line_in_the_log(client, caplog):
    with caplog.at_level(logging.WARNING):
        assert client.get("/fails").status_code == 500
        assert client.put("/a%0aFAKE LINE").status_code == 405
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert said == [
        r"GET /fails from testclient refused: KeyError: 'nothing\\nof that name'",
        r"PUT /a\nFAKE LINE from testclient refused: The page sends no such request.",
    ]
