"""What is given out, shared, verified and removed; the user's own files; requantisation."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from twospeed.config import Model
from twospeed.models.records import default_root
from twospeed.models.store import Progress, Store, StoreError

REVERSE = "import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read()[::-1])"


def quiet(_: Progress) -> None:
    pass


def child(script: str) -> Callable[[Path, Path, str], list[str]]:
    return lambda source, target, kind: [sys.executable, "-c", script, str(source), str(target), kind]


@pytest.fixture
def wanted(files: Any, data: bytes, sha: str) -> Model:
    files.content["/m"] = data
    return Model(sources=[f"{files.url}/m"], sha256=sha, size=len(data))


def test_two_names_of_one_file_share_it(store: Store, files: Any, wanted: Model) -> None:
    assert store.ensure("a", wanted, quiet) == store.ensure("b", wanted, quiet)
    assert len(files.gets("/m")) == 1
    assert store.shares("a", {"a": wanted, "b": wanted}) == ["b"]


def test_a_touched_file_is_hashed_again_and_kept(store: Store, files: Any, wanted: Model) -> None:
    path = store.ensure("m", wanted, quiet)
    os.utime(path, (1, 1))
    assert store.find("m", wanted) is None
    assert store.entries({"m": wanted})[0].state == "changed"
    seen = list[Progress]()
    assert store.ensure("m", wanted, seen.append) == path
    assert {p.phase for p in seen} == {"verifying"}
    assert store.find("m", wanted) == path
    assert len(files.gets("/m")) == 1


def test_a_damaged_file_is_never_given_out_and_fetched_again(
    store: Store, files: Any, wanted: Model, data: bytes
) -> None:
    path = store.ensure("m", wanted, quiet)
    path.write_bytes(data[:-1] + b"!")
    assert store.find("m", wanted) is None
    assert store.ensure("m", wanted, quiet).read_bytes() == data
    assert len(files.gets("/m")) == 2


def test_verify_finds_rot_that_the_file_system_does_not_show(
    store: Store, files: Any, wanted: Model, data: bytes
) -> None:
    path = store.ensure("m", wanted, quiet)
    assert store.verify("m", wanted, quiet) == path
    stat = path.stat()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert store.find("m", wanted) == path  # nothing shows
    with pytest.raises(StoreError, match=r"^m: wrong checksum: sha256 is .*, expected "):
        store.verify("m", wanted, quiet)
    assert store.find("m", wanted) is None
    assert store.ensure("m", wanted, quiet).read_bytes() == data
    store.verify("m", wanted, quiet)


def test_verify_of_an_absent_model_says_so(store: Store, wanted: Model) -> None:
    with pytest.raises(StoreError, match=r"^m: not here$"):
        store.verify("m", wanted, quiet)
    assert not list(store.root.rglob("models/*"))


def test_a_file_whose_record_is_lost_or_unreadable_is_hashed_and_adopted(
    store: Store, files: Any, wanted: Model
) -> None:
    path = store.ensure("m", wanted, quiet)
    path.with_name("model.json").write_text("{")
    assert store.find("m", wanted) is None
    assert store.ensure("m", wanted, quiet) == path
    path.with_name("model.json").unlink()
    assert store.ensure("m", wanted, quiet) == path
    assert len(files.gets("/m")) == 1


def test_remove_frees_the_file_and_its_record(store: Store, wanted: Model, data: bytes) -> None:
    store.ensure("m", wanted, quiet)
    assert store.remove("m", wanted) == (len(data), None)
    assert store.find("m", wanted) is None
    assert not list((store.root / "models").iterdir())
    assert store.remove("m", wanted) == (0, None)


def test_a_file_of_the_users_own_is_used_in_place_hashed_once_and_never_removed(
    store: Store, tmp_path: Path, data: bytes, sha: str
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(data)
    wanted, seen = Model(sources=[f"file:{own}"], sha256=sha), list[Progress]()
    assert store.ensure("m", wanted, seen.append) == own
    assert {p.phase for p in seen} == {"verifying"}
    assert store.find("m", wanted) == own
    assert store.remove("m", wanted) == (0, own)
    assert own.read_bytes() == data


def test_a_wrong_file_of_the_users_own_is_refused_and_left_alone(
    store: Store, files: Any, tmp_path: Path, wanted: Model, data: bytes
) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"other")
    wrong = wanted.model_copy(update={"sources": [f"file:{own}"], "size": None})
    with pytest.raises(StoreError, match=r"^m: file:.*own.gguf: wrong checksum"):
        store.ensure("m", wrong, quiet)
    for path in (own, tmp_path / "none.gguf", tmp_path):
        both = wanted.model_copy(update={"sources": [f"file:{path}", *wanted.sources]})
        assert store.ensure("m", both, quiet).read_bytes() == data
        store.remove("m", both)
    assert own.read_bytes() == b"other"


def test_a_changed_file_of_the_users_own_without_checksum_is_hashed_anew(store: Store, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"one")
    wanted = Model(sources=[f"file:{own}"])
    store.ensure("m", wanted, quiet)
    own.write_bytes(b"three")
    assert store.find("m", wanted) is None
    assert store.ensure("m", wanted, quiet) == own
    assert store.entries({"m": wanted})[0].sha256 == hashlib.sha256(b"three").hexdigest()


def test_requantised_once_and_recorded(
    make_store: Callable[..., Store], files: Any, wanted: Model, data: bytes, sha: str
) -> None:
    store, seen = make_store(quantizer=child(REVERSE)), list[Progress]()
    small = wanted.model_copy(update={"quantize": "Q4_0"})
    path = store.ensure("m", small, seen.append)
    assert path.read_bytes() == data[::-1]
    assert "quantizing" in {p.phase for p in seen}
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "model.json"]
    entry = store.entries({"m": small})[0]
    assert entry.sha256 == hashlib.sha256(data[::-1]).hexdigest()
    assert entry.quantized is not None
    assert (entry.quantized.type, entry.quantized.from_sha256) == ("Q4_0", sha)
    store.verify("m", small, quiet)
    assert store.ensure("m", small, quiet) == path
    assert len(files.gets("/m")) == 1
    assert store.find("m", wanted) is None
    path.write_bytes(b"rot")
    assert store.ensure("m", small, quiet).read_bytes() == data[::-1]


def test_requantising_uses_and_keeps_another_models_file(
    make_store: Callable[..., Store], files: Any, tmp_path: Path, wanted: Model, data: bytes
) -> None:
    store = make_store(quantizer=child(REVERSE))
    plain = store.ensure("plain", wanted, quiet)
    store.ensure("small", wanted.model_copy(update={"quantize": "Q4_0"}), quiet)
    assert store.find("plain", wanted) == plain
    assert len(files.gets("/m")) == 1
    own = tmp_path / "own.gguf"
    own.write_bytes(data)
    assert store.ensure("own", Model(sources=[f"file:{own}"], quantize="Q8_0"), quiet).read_bytes() == data[::-1]
    assert own.exists()


def test_a_failed_requantisation_is_one_line_and_keeps_the_download(
    make_store: Callable[..., Store], files: Any, wanted: Model
) -> None:
    small = wanted.model_copy(update={"quantize": "Q4_0"})
    broken = "import sys; open(sys.argv[2], 'wb').write(b'half'); print('noise'); sys.exit('no such type')"
    with pytest.raises(StoreError, match=r"^m: requantising to Q4_0 failed: no such type$"):
        make_store(quantizer=child(broken)).ensure("m", small, quiet)
    store = make_store(quantizer=child(REVERSE))
    assert sorted(p.name for p in store.root.rglob("*.gguf")) == ["original.gguf"]
    assert store.entries({"m": small})[0].state == "partial"
    store.ensure("m", small, quiet)
    assert len(files.gets("/m")) == 1


def test_a_cancelled_requantisation_ends_its_process(
    make_store: Callable[..., Store], tmp_path: Path, wanted: Model
) -> None:
    cancelled = threading.Event()
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    store = make_store(quantizer=child(script))

    def cancel(now: Progress) -> None:
        if now.phase == "quantizing":
            threading.Timer(1, cancelled.set).start()

    begun = time.monotonic()
    with pytest.raises(StoreError, match=r"^m: cancelled$"):
        store.ensure("m", wanted.model_copy(update={"quantize": "Q4_0"}), cancel, cancelled=cancelled)
    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_a_killed_pull_left_behind_is_cleared(store: Store, wanted: Model) -> None:
    path = store.ensure("m", wanted, quiet)
    store.remove("m", wanted)
    (path.parent / "tmp-abc").mkdir(parents=True)
    (path.parent / "tmp-abc" / "x.whl").write_bytes(b"wheel")
    (path.parent / "tmp-quantized.gguf").write_bytes(b"half")
    store.ensure("m", wanted, quiet)
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.gguf", "model.json"]


def test_a_bad_source_or_none_is_one_line(store: Store) -> None:
    with pytest.raises(StoreError, match=r"^m: source 'hf:x': must be hf:OWNER"):
        store.ensure("m", Model(sources=["hf:x"]), quiet)
    with pytest.raises(StoreError, match=r"^m: has no sources$"):
        store.ensure("m", Model(backend="fake"), quiet)


def test_the_root_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOSPEED_HOME", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("TWOSPEED_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "twospeed"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_root() == Path.home() / ".cache" / "twospeed"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_root() == Path.home() / "Library" / "Caches" / "twospeed"
