"""Places to put files, for the tests: this machine, memory, an object store, a web server."""

from __future__ import annotations

import http.server
import re
import threading
import uuid
from collections import Counter
from pathlib import Path

import fsspec

NAMES = ("local", "memory", "s3", "http")
REGION = "us-east-1"


class Storage:
    """Something with files in it.

    ``url`` is the folder; ``glob`` is a pattern for a name in it, where there are listings.
    """

    def __init__(self, url):
        self.url = url

    def put(self, name, content):
        """Write a file and return its URL."""
        system, folder = fsspec.core.url_to_fs(self.url)
        system.pipe_file(f"{folder}/{name}", content)
        return f"{self.url}/{name}"

    def close(self):
        """Leave nothing."""


class Local(Storage):
    """A folder."""

    def __init__(self, folder):
        super().__init__(str(folder))

    def put(self, name, content):
        """Write a file."""
        (Path(self.url) / name).write_bytes(content)
        return f"{self.url}/{name}"


class Memory(Storage):
    """fsspec's own; it is copied into forked processes, and unknown in others."""

    def __init__(self):
        super().__init__(f"memory://{uuid.uuid4().hex}")


class ObjectStore(Storage):
    """moto's S3, in a thread of this process; found by the environment, as in production."""

    _server = None

    def __init__(self, monkeypatch):
        super().__init__(f"s3://bucket-{uuid.uuid4().hex}")
        host, port = self._address()
        settings = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION,
        }  # fmt: skip
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        fsspec.filesystem("s3").mkdir(self.url)

    @classmethod
    def _address(cls):
        if cls._server is None:
            from moto.server import ThreadedMotoServer

            cls._server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
            cls._server.start()
        return cls._server.get_host_and_port()


class WebServer(Storage):
    """A server of files that knows ranges, and can be told to fail."""

    def __init__(self, *, ranges=True):
        self.files = {}
        self.versions = {}  # entity tags, of the files that have one
        self.requests = Counter()
        self.failures = 0
        self.num_granted = None  # how many bodies are sent before 403; None: all
        self.num_cut = 0  # how many bodies end in the middle
        self.num_lost = 0  # how many connections end without an answer
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler(ranges))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()
        super().__init__(f"http://127.0.0.1:{self._server.server_port}")

    def put(self, name, content):
        """Serve a file."""
        self.files[f"/{name}"] = content
        return f"{self.url}/{name}"

    def close(self):
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self, ranges):
        storage = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self):
                self._answer(with_body=False)

            def do_GET(self):
                self._answer(with_body=True)

            def _answer(self, *, with_body):
                storage.requests[self.command, self.path] += 1
                content = storage.files.get(self.path)
                if content is None:
                    return self.send_error(404)
                if storage.num_lost and with_body:
                    storage.num_lost -= 1
                    self.close_connection = True
                    return None
                if storage.failures and with_body:
                    storage.failures -= 1
                    return self.send_error(503)
                if storage.num_granted is not None and with_body:
                    if not storage.num_granted:
                        return self.send_error(403)
                    storage.num_granted -= 1
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if asked and ranges:
                    start, last = map(int, asked.groups())
                    body = content[start : last + 1]
                    self.send_response(206)
                    self.send_header(
                        "Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(content)}"
                    )
                else:
                    body = content
                    self.send_response(200)
                    if ranges is None:
                        self.send_header("Accept-Ranges", "none")
                if self.path in storage.versions:
                    self.send_header("ETag", storage.versions[self.path])
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                cuts = with_body and storage.num_cut > 0
                storage.num_cut -= cuts
                if with_body:
                    self.wfile.write(body[: len(body) // 2] if cuts else body)
                self.close_connection = cuts
                return None

            def log_message(self, *_):
                """Print nothing."""

        return Handler


def open_storage(name, tmp_path, monkeypatch):
    """Make a storage by name."""
    if name == "local":
        return Local(tmp_path)
    if name == "memory":
        return Memory()
    return ObjectStore(monkeypatch) if name == "s3" else WebServer()


