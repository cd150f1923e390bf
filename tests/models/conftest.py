"""A real HTTP server on loopback with Range support and faults on demand, and wheels for a real pip."""

from __future__ import annotations

import hashlib
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from twospeed.models.download import Downloader
from twospeed.models.store import Store


@dataclass
class Files:
    """What the server has, how it misbehaves, and what it was asked."""

    url: str = ""
    content: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    ranges: bool = True
    etag: str = '"one"'
    cut_at: int | None = None  # bytes of a response's body after which the connection breaks
    cuts: int = 10**9  # how many responses that happens to
    pause_s: float = 0.0  # after every 64 KiB
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0

    def gets(self, path: str) -> list[dict[str, str]]:
        return [headers for method, asked, headers in self.requests if method == "GET" and asked == path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        files = self.server.files
        asked = {k.lower(): v for k, v in self.headers.items()}
        files.requests.append((self.command, self.path, asked))
        extra = dict(files.headers.get(self.path, {}))
        if self.path in files.redirects:
            self._head(302, {"Location": files.redirects[self.path], "Content-Length": "0", **extra})
            return
        data = files.content.get(self.path)
        if data is None:
            self._head(404, {"Content-Length": "0"})
            return
        start, status = 0, 200
        if files.ranges and "range" in asked and asked.get("if-range", files.etag) == files.etag:
            start, status = int(asked["range"].removeprefix("bytes=").rstrip("-")), 206
            extra["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            if start >= len(data):
                self._head(416, {"Content-Range": f"bytes */{len(data)}", "Content-Length": "0"})
                return
        self._head(status, {"ETag": files.etag, "Content-Length": str(len(data) - start), **extra})
        if body:
            self._body(data[start:])

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self, data: bytes) -> None:
        files = self.server.files
        if files.cut_at is not None and files.cuts > 0:
            files.cuts -= 1
            data, self.close_connection = data[: files.cut_at], True
        for at in range(0, len(data), 65536):
            piece = data[at : at + 65536]
            try:
                self.wfile.write(piece)
            except ConnectionError:  # the client was killed
                self.close_connection = True
                return
            files.sent += len(piece)
            time.sleep(files.pause_s)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = Files(url=f"https://127.0.0.1:{self.server_port}")

    def handle_error(self, *args: object) -> None:
        pass


@pytest.fixture
def files() -> Iterator[Files]:
    """The server; `url` says https, which `PlainHTTP` takes for http: the product itself only speaks https."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.files
    server.shutdown()
    server.server_close()
    thread.join()


class PlainHTTP(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(scheme="http")
        return super().handle_request(request)


@pytest.fixture
def make_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    def make(**options: object) -> Store:
        store = Store(tmp_path / "home", transport=PlainHTTP(), **options)  # type: ignore[arg-type]
        monkeypatch.setattr(store, "_downloader", Downloader(PlainHTTP(), (0.0, 0.01, 0.01)))
        return store

    monkeypatch.setattr("twospeed.models.job._SPARE_BYTES", 0)
    return make


@pytest.fixture
def store(make_store: Callable[..., Store]) -> Store:
    return make_store()


@pytest.fixture
def data() -> bytes:
    return hashlib.shake_128(b"model").digest(600_000)


@pytest.fixture
def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, bytes]], Path]:
    """Makes a wheel that the real pip finds, and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

    def make(package: str, members: dict[str, bytes], version: str = "1.0") -> Path:
        module = package.replace("-", "_")
        wheel, info = folder / f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return wheel

    return make
