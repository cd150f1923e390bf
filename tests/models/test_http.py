"""https sources against a real server: resuming, truncation, wrong bytes, redirects, full disks."""

from __future__ import annotations

import errno
import logging
import threading
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest

from twospeed.config import Model
from twospeed.models.store import Progress, Store, StoreError


def quiet(_: Progress) -> None:
    pass


def model(files: Any, sha256: str | None, *paths: str, size: int | None = None) -> Model:
    return Model(sources=[files.url + path for path in paths or ("/m",)], sha256=sha256, size=size)


def left_over(store: Store) -> list[str]:
    folder = store.root / "models"
    return sorted(p.name for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


def test_a_pull_gives_the_file_and_reports_progress(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"] = data
    wanted, seen = model(files, sha, size=len(data)), list[Progress]()
    assert store.find("m", wanted) is None
    path = store.ensure("m", wanted, seen.append)
    assert path.read_bytes() == data
    assert store.find("m", wanted) == path
    assert seen[-1] == Progress("m", "downloading", len(data), len(data))
    assert left_over(store) == ["model.gguf", "model.json"]
    store.ensure("m", wanted, seen.append)
    assert len(files.gets("/m")) == 1


def test_a_broken_transfer_goes_on_where_it_stopped(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"], files.cut_at, files.cuts = data, 200_000, 2
    assert store.ensure("m", model(files, sha), quiet).read_bytes() == data
    assert files.sent == len(data)
    assert [g.get("range") for g in files.gets("/m")] == [None, "bytes=200000-", "bytes=400000-"]
    assert files.gets("/m")[1]["if-range"] == '"one"'


def test_a_truncated_file_is_one_line_and_a_later_pull_fetches_only_the_rest(
    store: Store, files: Any, data: bytes, sha: str
) -> None:
    files.content["/m"], files.cut_at, files.ranges = data, 200_000, False
    wanted = model(files, sha)
    with pytest.raises(StoreError) as caught:
        store.ensure("m", wanted, quiet)
    assert "\n" not in str(caught.value)
    assert store.find("m", wanted) is None
    assert left_over(store) == ["model.partial", "model.partial.json"]
    assert store.entries({"m": wanted})[0].state == "partial"
    files.cut_at, files.ranges, files.sent = None, True, 0
    assert store.ensure("m", wanted, quiet).read_bytes() == data
    assert files.sent == len(data) - 200_000


def test_a_changed_file_is_fetched_from_its_start(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"], files.cut_at, files.cuts, files.etag = b"x" * 500_000, 200_000, 4, '"old"'
    wanted = model(files, sha)
    with pytest.raises(StoreError, match="wrong checksum"):
        store.ensure("m", wanted, quiet)
    files.cuts = 4
    with pytest.raises(StoreError):
        store.ensure("m", wanted, quiet)
    files.content["/m"], files.cut_at, files.etag = data, None, '"new"'
    assert store.ensure("m", wanted, quiet).read_bytes() == data


def test_a_rotten_partial_file_is_started_over(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"], files.cut_at, files.ranges = data, 200_000, False
    wanted = model(files, sha)
    with pytest.raises(StoreError):
        store.ensure("m", wanted, quiet)
    partial = next((store.root / "models").glob("*/model.partial"))
    partial.write_bytes(b"\0" * 200_000)
    files.cut_at, files.ranges = None, True
    assert store.ensure("m", wanted, quiet).read_bytes() == data


def test_a_wrong_checksum_leaves_nothing(store: Store, files: Any, data: bytes) -> None:
    files.content["/m"] = data
    with pytest.raises(StoreError, match=f"^m: https.*wrong checksum: sha256 is .*, expected {'0' * 64}$"):
        store.ensure("m", model(files, "0" * 64), quiet)
    assert left_over(store) == []


def test_a_wrong_size_is_refused_before_the_transfer(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"] = data
    with pytest.raises(StoreError, match="has another file: 600000 bytes, expected 600001"):
        store.ensure("m", model(files, sha, size=600_001), quiet)
    assert left_over(store) == []


def test_a_dead_source_falls_through_with_a_line(
    store: Store, files: Any, data: bytes, sha: str, caplog: pytest.LogCaptureFixture
) -> None:
    files.content["/m"], files.content["/wrong"] = data, b"other"
    wanted = Model(sources=["https://127.0.0.1:1/m", f"{files.url}/none", f"{files.url}/wrong", f"{files.url}/m"])
    wanted = wanted.model_copy(update={"sha256": sha})
    with caplog.at_level(logging.INFO, "twospeed.models"):
        assert store.ensure("m", wanted, quiet).read_bytes() == data
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert all(line.startswith("m: https://") and line.endswith("; trying the next source") for line in lines)
    assert "HTTP 404" in lines[1]
    assert "wrong checksum" in lines[2]
    assert store.entries({"m": wanted})[0].source == f"{files.url}/m"


def test_when_every_source_fails_the_line_names_each(store: Store, files: Any, sha: str) -> None:
    with pytest.raises(StoreError, match=r"^m: https.*/a: HTTP 404 Not Found; https.*/b: HTTP 404 Not Found$"):
        store.ensure("m", model(files, sha, "/a", "/b"), quiet)
    assert left_over(store) == []


def test_redirects_are_followed_but_never_to_plain_http(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"] = data
    files.redirects = {"/moved": "/m", "/plain": files.url.replace("https", "http") + "/m", "/loop": "/loop"}
    with pytest.raises(StoreError, match="not https"):
        store.ensure("m", model(files, sha, "/plain"), quiet)
    with pytest.raises(StoreError, match="too often"):
        store.ensure("m", model(files, sha, "/loop"), quiet)
    assert store.ensure("m", model(files, sha, "/moved"), quiet).read_bytes() == data


def test_too_little_disk_space_is_noticed_before_the_transfer(
    store: Store, files: Any, data: bytes, sha: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    files.content["/m"] = data
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(1000))
    with pytest.raises(StoreError, match="not enough disk space: 600 kB needed, 1 kB free"):
        store.ensure("m", model(files, sha), quiet)
    assert left_over(store) == []


def test_a_disk_that_fills_up_leaves_nothing_and_tries_no_other_source(
    store: Store, files: Any, data: bytes, sha: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.content["/m"] = files.content["/mirror"] = data
    real_open = Path.open

    class Full:
        def __init__(self, file: BinaryIO) -> None:
            self.close = file.close

        def write(self, _: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full_open(path: Path, mode: str = "r", *rest: Any) -> Any:
        file = real_open(path, mode, *rest)
        return Full(file) if mode == "wb" and path.name == "model.partial" else file  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", full_open)
    with pytest.raises(StoreError, match=r"^m: the disk is full: "):
        store.ensure("m", model(files, sha, "/m", "/mirror"), quiet)
    assert left_over(store) == []
    assert files.gets("/mirror") == []


def test_a_cancelled_pull_can_be_resumed(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"], cancelled = data, threading.Event()

    def cancel_midway(now: Progress) -> None:
        if now.done > 100_000:
            cancelled.set()

    files.pause_s = 0.11  # progress is reported ten times a second
    with pytest.raises(StoreError, match=r"^m: cancelled$"):
        store.ensure("m", model(files, sha), cancel_midway, cancelled=cancelled)
    files.pause_s = 0
    assert store.ensure("m", model(files, sha), quiet).read_bytes() == data
    assert int(files.gets("/m")[1]["range"].removeprefix("bytes=").rstrip("-")) > 100_000


def test_without_a_checksum_the_first_file_is_trusted_and_must_not_change(
    store: Store, files: Any, data: bytes
) -> None:
    files.content["/m"] = data
    wanted = model(files, None)
    path = store.ensure("m", wanted, quiet)
    path.write_bytes(b"rot")
    files.content["/m"] = b"another"
    with pytest.raises(StoreError, match="as fetched before; `twospeed rm m` accepts another"):
        store.ensure("m", wanted, quiet)
    assert store.find("m", wanted) is None
    files.content["/m"] = data
    assert store.ensure("m", wanted, quiet).read_bytes() == data
    files.content["/m"] = b"another"
    store.remove("m", wanted)
    assert store.ensure("m", wanted, quiet).read_bytes() == b"another"
