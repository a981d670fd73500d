"""What a browser of this page never sends is not taken: large questions, and pictures that are to be fetched elsewhere."""

import re
from typing import Any

LARGEST_QUESTION = 64 * 1024
"""Bytes of a request that is not an upload: names of files and positions of sliders."""
ELSEWHERE = re.compile(rb'"path"\s*:\s*"\s*(?:https?|ftp|file|data):', re.IGNORECASE)


class Guard:
    """An ASGI application before the page's own."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read a question whole, look at it, and hand it on; uploads, which have their own limit, pass."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD") or scope["path"].endswith("/upload"):
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= LARGEST_QUESTION:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > LARGEST_QUESTION or ELSEWHERE.search(body):
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": b"This page takes pictures as uploads only."})
            return
        told = False

        async def again() -> Any:
            nonlocal told
            if told:
                return await receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)
