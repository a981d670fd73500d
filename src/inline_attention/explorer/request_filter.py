"""Refuses requests that the page itself never sends: large ones, and images to be fetched from elsewhere."""

import re
from typing import Any

LARGEST_REQUEST = 64 * 1024
"""Bytes of a request that is not an upload: names of files and positions of sliders."""
ELSEWHERE = re.compile(rb'"path"\s*:\s*"\s*(?:https?|ftp|file|data):', re.IGNORECASE)


class RequestFilter:
    """ASGI middleware in front of the page."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read a request, check it, and pass it on; uploads, which have their own limit, pass unread."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD") or scope["path"].endswith("/upload"):
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more and len(body) <= LARGEST_REQUEST:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if len(body) > LARGEST_REQUEST or ELSEWHERE.search(body):
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": b"This page takes images as uploads only."})
            return
        passed_on = False

        async def receive_body() -> Any:
            nonlocal passed_on
            if passed_on:
                return await receive()
            passed_on = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, receive_body, send)
