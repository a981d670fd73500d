"""A server on this machine that answers like the one with the authors' files: no file name in the address, no length."""

from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep


class Files:
    """What the server has, by identifier, and how often each was asked for.

    A value is the content; or (content, bytes): the connection breaks off after so many bytes, and a request that says where
    to go on is answered; or a number: an error.
    """

    def __init__(self, address):
        self.address, self.content, self.asked, self.ranges, self.delay = address, {}, Counter(), [], 0.0

    def url(self, identifier, content):
        self.content[identifier] = content
        return f"{self.address}/f/{identifier}/?dl=1"


@contextmanager
def weights_server():
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            path, _, query = self.path.partition("?")
            identifier = path.removeprefix("/f/").rstrip("/")
            content = files.content.get(identifier, 404)
            if query != "dl=1" or isinstance(content, int):
                self.send_error(content if isinstance(content, int) else 404)
                return
            files.asked[identifier] += 1
            sleep(files.delay)
            content, until = content if isinstance(content, tuple) else (content, None)
            begin = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            files.ranges += [begin] if begin else []
            if until is not None and begin >= len(content):
                self.send_error(416)
                return
            page = content.startswith(b"<")
            self.send_response(206 if begin and until is not None else 200)
            begin = begin if until is not None else 0
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Type", "text/html" if page else "application/octet-stream")
            self.send_header("Content-Disposition", f'attachment; filename="{identifier}.pth"')
            self.end_headers()
            self.wfile.write(content[begin : until if until and begin < until else len(content)])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files = Files(f"http://127.0.0.1:{server.server_address[1]}")
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
