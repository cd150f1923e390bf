"""Two processes at once, and one that is killed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from twospeed.config import Model
from twospeed.models.store import Store

CHILD = Path(__file__).with_name("pull_child.py")


def start(store: Store, files: Any, sha: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), str(store.root), f"{files.url}/m", sha]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_download_once(store: Store, files: Any, data: bytes, sha: str) -> None:
    files.content["/m"], files.pause_s = data, 0.2
    children = [start(store, files, sha) for _ in range(2)]
    results = [child.communicate(timeout=60) for child in children]
    assert [child.returncode for child in children] == [0, 0], results
    assert len({out for out, _ in results}) == 1
    assert Path(results[0][0].strip()).read_bytes() == data
    assert len(files.gets("/m")) == 1
    assert sum("another process works on this file" in err for _, err in results) == 1


def test_a_killed_pull_leaves_no_final_file_and_is_resumed(store: Store, files: Any, data: bytes) -> None:
    data = data * 10
    files.content["/m"], files.pause_s = data, 0.02
    sha = hashlib.sha256(data).hexdigest()
    wanted = Model(sources=[f"{files.url}/m"], sha256=sha)
    child = start(store, files, sha)
    deadline = time.monotonic() + 30
    while files.sent < 2_000_000 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.kill()
    child.communicate()
    assert not list(store.root.rglob("*.gguf"))
    assert store.find("m", wanted) is None
    assert store.entries({"m": wanted})[0].state == "partial"
    files.pause_s = 0
    assert store.ensure("m", wanted, lambda _: None).read_bytes() == data
    assert int(files.gets("/m")[1]["range"].removeprefix("bytes=").rstrip("-")) > 1_000_000
