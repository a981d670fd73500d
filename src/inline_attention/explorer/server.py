"""The server of the page: from its start to its end, by Ctrl-C or SIGTERM."""

import logging
import os
import signal
import socket
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import gradio as gr
import uvicorn
from fastapi import FastAPI

from ..compat import shorten_gradio_errors
from .address import Address
from .answers import RunningAnswers
from .large_view import LargeView
from .model_cache import ModelCache
from .page import CSS, build
from .request_filter import LARGEST_FILE, RequestFilter

log = logging.getLogger(__name__)
LONGEST_WAIT = 60.0
"""Seconds that the server waits at its end for answers that are being computed."""


def serve(
    model_cache: ModelCache, report: Callable[[str], None], listener: socket.socket, address: Address, *,
    large: LargeView | None = None, open_browser: bool = False,
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C or SIGTERM; uploads are kept in a folder that is deleted with the server.

    Args:
        report: called with the page's address once it is served.
        large: an image that is larger than memory.
        listener: a socket that listens at the address.
    """
    running = RunningAnswers()
    with _terminated_as_interrupted(), listener, _upload_folder():
        shorten_gradio_errors(lambda text: log.warning("a request was not answered: %s", ascii(text[:300])[1:-1]))
        page = build(model_cache, running, large)
        page.queue(default_concurrency_limit=2, max_size=64)
        app = gr.mount_gradio_app(
            FastAPI(openapi_url=None), page, "/", server_name=address.host, server_port=address.port, footer_links=[],
            run_history=False, max_file_size=LARGEST_FILE, ssr_mode=False, enable_monitoring=False, css=CSS,
            theme=gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["monospace"]),
        )  # fmt: skip
        config = uvicorn.Config(
            RequestFilter(app, address), log_level="warning", proxy_headers=False, ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            report(str(address))
            if open_browser:
                webbrowser.open(str(address))
            while thread.is_alive():  # ended by KeyboardInterrupt, or by an error of the server
                thread.join(1)
        except KeyboardInterrupt:
            logging.getLogger("uvicorn.error").setLevel(
                logging.CRITICAL
            )  # that it ends answers to open pages is as it should be
            page.close(verbose=False)  # also stops the queue: no further answer begins
            server.should_exit = True
            running.close(LONGEST_WAIT)
            thread.join(LONGEST_WAIT)


@contextmanager
def _upload_folder() -> Iterator[None]:
    """Uploads are kept in a folder that is deleted at the end."""
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(prefix="inline-explore-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["GRADIO_TEMP_DIR"]
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that what must be deleted is deleted."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
