"""hf sources: the real huggingface_hub against a hub made here."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from twospeed.config import Model
from twospeed.models.store import Progress, Store, StoreError

FILE = "/owner/repo/resolve/v1/dir/m.gguf"
CDN = "/cdn?signature=1"
SOURCE = "hf:owner/repo/dir/m.gguf@v1"


def asked(hub: Any) -> list[Any]:
    """Without what huggingface_hub asks a hub on its own account."""
    return [request for request in hub.requests if request[1] in (FILE, CDN)]


def quiet(_: Progress) -> None:
    pass


@pytest.fixture
def hub(files: Any, data: bytes, sha: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hub names the file's sha256 and sends us on to a storage server, here under another name of this host."""
    endpoint = files.url.replace("https", "http")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        huggingface_hub.constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(huggingface_hub.constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    files.redirects[FILE] = files.url.replace("127.0.0.1", "localhost") + CDN
    files.headers[FILE] = {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": "c0ffee"}
    files.content[CDN] = data
    return files


def test_the_hub_resolves_the_file_and_its_token_goes_nowhere_else(store: Store, hub: Any, data: bytes) -> None:
    wanted = Model(sources=[SOURCE])
    assert store.ensure("m", wanted, quiet).read_bytes() == data
    head, get = asked(hub)
    assert (head[:2], get[:2]) == (("HEAD", FILE), ("GET", CDN))
    assert head[2]["authorization"] == "Bearer hf_secret"
    assert "authorization" not in get[2]
    assert store.entries({"m": wanted})[0].source == SOURCE


def test_a_broken_transfer_asks_the_hub_again_and_goes_on(store: Store, hub: Any, data: bytes) -> None:
    hub.cut_at, hub.cuts = 100_000, 1
    assert store.ensure("m", Model(sources=[SOURCE]), quiet).read_bytes() == data
    assert hub.sent == len(data)
    assert [method for method, _, _ in asked(hub)] == ["HEAD", "GET", "HEAD", "GET"]


def test_a_file_that_is_not_what_the_hub_says_is_refused(store: Store, hub: Any, data: bytes) -> None:
    hub.content[CDN] = data[::-1]
    with pytest.raises(StoreError, match="wrong checksum"):
        store.ensure("m", Model(sources=[SOURCE]), quiet)
    assert not list(store.root.rglob("model.*"))


def test_another_file_on_the_hub_is_noticed_before_the_transfer(store: Store, hub: Any) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(StoreError, match=f"has another file: sha256 .*, expected {other}"):
        store.ensure("m", Model(sources=[SOURCE], sha256=other), quiet)
    assert hub.gets(CDN) == []


def test_an_unknown_file_falls_through_with_one_line(
    store: Store, hub: Any, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    hub.content["/m"] = data
    with caplog.at_level(logging.INFO, "twospeed.models"):
        path = store.ensure("m", Model(sources=["hf:owner/none/m.gguf", f"{hub.url}/m"]), quiet)
    assert path.read_bytes() == data
    assert len(caplog.records) == 1
    line = caplog.records[0].getMessage()
    assert line.startswith("m: hf:owner/none/m.gguf: ")
    assert "\n" not in line
    assert "404" in line
