"""The server without a browser: what it answers to others than the page, and how it ends."""

import http.client
import json
import signal
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from inline_attention.explorer import server
from inline_attention.explorer.address import listen

from .server import running_server

JOIN = "/gradio_api/queue/join"


def ask(address, method, path, body=b"", **headers):
    """Status and headers of an answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request(method, path, body, given)
    answered = connection.getresponse()
    text = answered.read().decode()
    connection.close()
    return answered.status, answered.headers, text


def test_sigterm_ends_it_as_ctrl_c_does_and_bad_requests_are_lines(tmp_path):
    """Uploads are deleted; a page that is still open does not hold the server up."""
    log = []
    with running_server(tmp_path, "inline_deit_nano", ending=signal.SIGTERM, log=log) as address:
        port = urlsplit(address).port
        assert ask(address, "GET", "/config")[0] == ask(address, "GET", "/config", Host=f"localhost:{port}")[0] == 200
        assert ask(address, "GET", "/config", Host=f"evil.com:{port}")[0] == 403
        for origin in ("http://evil", "null", "http://localhost:9999"):
            for method, path in (("GET", "/config"), ("OPTIONS", JOIN), ("POST", JOIN)):
                status, headers, _ = ask(address, method, path, Origin=origin, Access_Control_Request_Method="POST")
                assert (status, headers["Access-Control-Allow-Origin"]) == (403, None)
        part = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nno image\r\n--b--\r\n'
        kind = "multipart/form-data; boundary=b"
        status, _, text = ask(address, "POST", "/gradio_api/upload", part, Content_Type=kind)
        assert status == 200
        assert json.loads(text)[0].startswith(str(tmp_path / "inline-explore-"))
        hidden = rb'{"data": [{"\u0070ath": "http://10.0.0.1/a.png"}], "fn_index": 0, "session_hash": "x"}'
        assert ask(address, "POST", JOIN, hidden)[0] == ask(address, "POST", JOIN, hidden.decode().encode("utf-16"))[0] == 400
        for question in (
            {"data": [1, 2], "fn_index": 0},
            {"data": ["\ud800"] * 8, "fn_index": 0},
            {"data": [], "fn_index": 999},
        ):
            ask(address, "POST", JOIN, json.dumps({**question, "session_hash": "x"}).encode())
        page_left_open = http.client.HTTPConnection(urlsplit(address).netloc)
        page_left_open.request("GET", "/gradio_api/heartbeat/x")
        assert page_left_open.getresponse().status == 200
    page_left_open.close()
    assert sum("a request was not answered: " in line for line in log) == 2
    assert all("refused: " in line or "a request was not answered: " in line for line in log), log


def test_it_reports_its_address_and_ends_after_a_bounded_wait(monkeypatch):
    def report(address):
        reported.append(address)
        signal.raise_signal(signal.SIGTERM)

    reported, waited, before = [], [], signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(server, "build", lambda *_, **__: Mock())
    monkeypatch.setattr(server.gr, "mount_gradio_app", Mock())
    monkeypatch.setattr(server.uvicorn, "Server", Mock())
    monkeypatch.setattr(server, "shorten_gradio_errors", Mock())
    monkeypatch.setattr(server.RunningAnswers, "close", lambda _, seconds: waited.append(seconds))
    listener, address = listen("127.0.0.1", 0)
    server.serve(None, report, listener, address)
    assert reported == [f"http://127.0.0.1:{address.port}/"]
    assert waited == [server.LONGEST_WAIT]
    assert listener.fileno() == -1, "closed"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow  # the tests with a browser end their server in the same way
def test_ctrl_c_ends_it_while_an_answer_is_being_computed(tmp_path):
    with running_server(tmp_path, "inline_deit_nano"):
        pass
