"""A hub on this machine: answers huggingface_hub's own client as the hub does, downloads and uploads by Git LFS.

A small file is redirected within the hub, a large one to a second server, as the hub does with its storage (CDN), which must
not be sent the token. Nothing here answers like Xet, by which the hub's clients upload today where `hf_xet` is installed.
"""

import base64
import hashlib
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

TOKEN = "hf_local"
LARGE = ".safetensors"


class Hub:
    """Repositories by owner/name, each a dictionary of files.

    `requests` are (method, "hub" or "cdn", path, token or None), `stored` the large files by their sha256.
    """

    def __init__(self):
        self.repos, self.private, self.stored, self.commits, self.requests = {}, set(), {}, [], []
        self.address = self.cdn = ""
        self.up = True

    def revision(self, repo):
        """A commit hash that changes with the files."""
        content = [(name, hashlib.sha1(self.repos[repo][name]).hexdigest()) for name in sorted(self.repos[repo])]
        return hashlib.sha1(repr(content).encode()).hexdigest()

    def files_sent(self):
        """Names of the files whose content was asked for; a large one by its hash."""
        got = [(kind, path) for method, kind, path, _ in self.requests if method == "GET"]
        return [path.rpartition("/")[2] for kind, path in got if "/resolve/" in path or kind == "cdn"]


class Handler(BaseHTTPRequestHandler):
    """What both servers answer; `server.hub` and `server.kind` are set by `hub_server`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, path = self.server.hub, self.path.partition("?")[0]
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        hub.requests.append((self.command, self.server.kind, path, token))
        body = self.body()
        if not hub.up:
            self.answer(503)
        elif self.server.kind == "cdn":
            self.storage(path.strip("/"), body)
        elif self.command != "POST":
            self.read(path, token)
        elif token != TOKEN:
            self.answer(401, {"error": "Invalid username or password."})
        elif "/commit/" in path:
            self.commit(path, [json.loads(line) for line in body.splitlines()])
        else:
            self.prepare(path, json.loads(body))

    def do_HEAD(self):
        self.do_GET()

    def do_POST(self):
        self.do_GET()

    def do_PUT(self):
        self.do_GET()

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def answer(self, status, body=b"", **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def storage(self, oid, body):
        stored = self.server.hub.stored
        if self.command == "PUT":
            stored[oid] = body
            self.answer(200)
        else:
            self.answer(200 if oid in stored else 404, stored.get(oid, b""))

    def read(self, path, token):
        """What is known of a repository, or a file of it."""
        hub = self.server.hub
        *_, owner, name = path.partition("/resolve/")[0].partition("/revision/")[0].split("/")
        repo, file = f"{owner}/{name}", path.partition("/resolve/")[2].partition("/")[2]
        if repo not in hub.repos or (repo in hub.private and token != TOKEN):
            self.answer(401 if token is None else 404, X_Error_Code="RepoNotFound")
        elif file:
            self.resolve(repo, file, path)
        else:
            siblings = [{"rfilename": name} for name in hub.repos[repo]]
            self.answer(200, {"id": repo, "sha": hub.revision(repo), "siblings": siblings})

    def resolve(self, repo, file, path):
        hub = self.server.hub
        commit, content = hub.revision(repo), hub.repos[repo].get(file)
        if content is None:
            self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
        elif file.endswith(LARGE):
            oid = hashlib.sha256(content).hexdigest()
            hub.stored[oid] = content
            linked = {"X_Linked_Etag": f'"{oid}"', "X_Linked_Size": len(content)}
            self.answer(302, Location=f"{hub.cdn}/{oid}", X_Repo_Commit=commit, **linked)
        elif path.startswith("/api/resolve-cache/"):
            self.answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)
        else:
            self.answer(307, Location=f"/api/resolve-cache/models/{repo}/resolve/{commit}/{file}", X_Repo_Commit=commit)

    def prepare(self, path, body):
        """What comes before the commit of an upload."""
        hub = self.server.hub
        if path == "/api/repos/create":
            repo = f"{body['organization']}/{body['name']}"
            hub.private |= {repo} if body.get("visibility") == "private" and repo not in hub.repos else set()
            self.answer(409 if repo in hub.repos else 200, {"url": f"{hub.address}/{repo}"})
            hub.repos.setdefault(repo, {})
        elif path == "/api/validate-yaml":
            valid = body["content"].startswith("---\n")
            self.answer(200, {} if valid else {"warnings": [{"message": "empty or missing yaml metadata in repo card"}]})
        elif "/preupload/" in path:
            modes = {file["path"]: "lfs" if file["path"].endswith(LARGE) else "regular" for file in body["files"]}
            files = [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]
            self.answer(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [{**each, "actions": {"upload": {"href": f"{hub.cdn}/{each['oid']}"}}} for each in body["objects"]]
            self.answer(200, {"transfer": "basic", "objects": objects})
        else:
            self.answer(404)

    def commit(self, path, lines):
        hub, repo = self.server.hub, "/".join(path.removeprefix("/api/models/").split("/")[:2])
        for value in (line["value"] for line in lines):
            if "summary" in value:
                hub.commits.append((repo, value["summary"]))
            elif "content" in value:
                hub.repos[repo][value["path"]] = base64.b64decode(value["content"])
            else:
                content = hub.stored[value["oid"]]
                if hashlib.sha256(content).hexdigest() != value["oid"]:
                    self.answer(400, {"error": "the content is not what its hash says"})
                    return
                hub.repos[repo][value["path"]] = content
        oid = hub.revision(repo)
        self.answer(200, {"commitUrl": f"{hub.address}/{repo}/commit/{oid}", "commitOid": oid})


@contextmanager
def hub_server():
    hub, servers = Hub(), []
    for kind in ("hub", "cdn"):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.hub, server.kind = hub, kind
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
    hub.address, hub.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
