"""Refuses requests that the page itself never sends: other sites, other names, files elsewhere, too many bytes."""

import asyncio
import json
import logging
import re
from typing import Any

from .address import Address

LARGEST_FILE = 20 * 2**20
LARGEST_UPLOAD = LARGEST_FILE + 64 * 1024
"""Bytes of a request that uploads: one file, and the headers around it."""
LARGEST_REQUEST = 64 * 1024
"""Bytes of a request that does not: names of files and positions of sliders."""
UPLOAD = "/gradio_api/upload"
API_PATHS = ("/gradio_api/queue/join", "/gradio_api/cancel", "/gradio_api/reset")
"""Where the page sends JSON to."""
SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]+:", re.IGNORECASE)
"""Of a URL. A drive of Windows has one letter."""
FETCHED = re.compile(r"/(?:file|proxy)=(.*)", re.DOTALL)

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request that is not passed on: the status of its answer, and the reason in words."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RequestFilter:
    """ASGI application in front of the page's, outside of all its middleware.

    Every refused or failed request is logged in one line.
    """

    def __init__(self, app: Any, address: Address) -> None:
        self.app, self.address = app, address

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Check a request and pass it on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # the page uses none
            return
        exchange = _Exchange(scope, receive, send)
        try:
            self._check(scope, exchange)
            if scope["method"] == "POST" and scope["path"] != UPLOAD:
                exchange.body = check_json(await exchange.read())
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            pass  # the server ends
        except Exception as error:  # what the page itself did not expect of a request
            exchange.refused = exchange.refused or _as_refusal(error)
        if exchange.refused is not None:
            await exchange.refuse(exchange.refused)

    def _check(self, scope: dict[str, Any], exchange: "_Exchange") -> None:
        """Raise if the headers of a request are not those that the page sends."""
        hosts, origins = exchange.header(b"host"), exchange.header(b"origin")
        if len(hosts) != 1 or not self.address.is_named(hosts[0]):
            raise RefusedError(403, f"This server is {self.address} and has no other name.")
        if any(origin.lower() != f"http://{hosts[0]}".lower() for origin in origins):
            raise RefusedError(403, "This page takes no requests from other sites.")
        method, path = scope["method"], scope["path"]
        if method not in ("GET", "HEAD", "POST") or (method == "POST" and path not in (UPLOAD, *API_PATHS)):
            raise RefusedError(405, "The page sends no such request.")
        if (fetched := FETCHED.search(path)) and SCHEME.match(fetched[1]):
            raise RefusedError(400, "This page fetches nothing from elsewhere.")
        if any(not length.isdecimal() or int(length) > exchange.limit for length in exchange.header(b"content-length")):
            raise RefusedError(413, exchange.too_large)


def _as_refusal(error: Exception) -> RefusedError:
    return error if isinstance(error, RefusedError) else RefusedError(400, f"{type(error).__name__}: {error}")


class _Exchange:
    """A request and its answer: counts the bytes of the body as they come, and sends one answer only."""

    def __init__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.limit = LARGEST_UPLOAD if scope["method"] == "POST" and scope["path"] == UPLOAD else LARGEST_REQUEST
        self.too_large = f"A request has at most {self.limit:,} bytes here."
        self.body: bytes | None = None
        """What the page gets instead of what arrives."""
        self.refused: RefusedError | None = None
        self._received, self._answered = 0, False

    def header(self, name: bytes) -> list[str]:
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == name]

    async def read(self) -> bytes:
        """The whole body."""
        body, more = b"", True
        while more:
            message = await self.receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        return body

    async def receive(self) -> Any:
        if self.body is not None:
            body, self.body = self.body, None
            return {"type": "http.request", "body": body, "more_body": False}
        message = await self._receive()
        self._received += len(message.get("body", b""))
        if self._received > self.limit:
            self.refused = RefusedError(413, self.too_large)
            raise self.refused
        return message

    async def send(self, message: Any) -> None:
        if self.refused is None:  # the page may answer to its own trouble with a body that ends early
            self._answered = True
            await self._send(message)

    async def refuse(self, refusal: RefusedError) -> None:
        """Log why, and answer, unless an answer has begun."""
        client = (self.scope.get("client") or ("nowhere",))[0]
        path = ascii(self.scope["path"][:200])[1:-1]
        log.warning("%s %s from %s refused: %s", self.scope["method"], path, client, ascii(str(refusal)[:300])[1:-1])
        if self._answered:
            return
        body = str(refusal).encode()
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def check_json(body: bytes) -> bytes:
    """The JSON of a request, written anew, so that nobody after this can read it differently; raises if it is refused.

    Names of files are those of uploads: paths, not URLs, which the page would fetch.
    """
    try:
        request = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "The page sends JSON in UTF-8.") from error
    todo = [request]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if isinstance(path := value.get("path"), str) and SCHEME.match(path):
                raise RefusedError(400, "This page takes images as uploads only.")
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return json.dumps(request).encode()
