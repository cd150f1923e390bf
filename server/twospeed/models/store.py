"""The model store: gets a model's file from the first source that has it, and gives out only verified files.

One process at a time works on a file (a lock); others wait and then find it. Knows nothing of terminals; notes go
to the logger `twospeed.models`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import filelock
import httpx
import msgspec

from ..config import Model
from .download import Downloader
from .job import Job, Progress, StoreError, disk_errors, log
from .obtain import Got, Wanted, obtain, publish
from .partial import hash_file
from .quantize import Quantizer, llama_command, quantize
from .records import Quantized, Slot, default_root, fits, make_record, refreshed, stat_file
from .sources import Source, parse_source

__all__ = ["Entry", "Progress", "Removed", "Store", "StoreError"]

_LOCK_POLL_S = 0.2


class Entry(NamedTuple):
    """One model as `twospeed list` shows it. `path` is set when a file is there, `size` is what is there of it."""

    name: str
    role: str
    state: str  # "present" | "partial" | "absent" | "changed" (there, but not as it was when verified)
    size: int
    source: str | None
    sha256: str | None
    quantized: Quantized | None
    path: Path | None


class Removed(NamedTuple):
    """What `remove` did: bytes freed, and the user's own file, which it leaves alone."""

    freed: int
    kept: Path | None


class Store:
    """The files under `root`. `transport` and `quantizer` stand in for the network and llama.cpp in tests."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        quantizer: Quantizer = llama_command,
    ) -> None:
        self.root = root or default_root()
        self._downloader = Downloader(transport)
        self._quantizer = quantizer

    def find(self, name: str, model: Model) -> Path | None:
        """The verified file, if it is there; fast, and safe to call at any time."""
        slot = Slot(self.root, name, model)
        record = slot.read()
        return slot.path(record) if record and fits(record, model) and slot.intact(record) else None

    def ensure(
        self,
        name: str,
        model: Model,
        progress: Callable[[Progress], None],
        *,
        cancelled: threading.Event | None = None,
    ) -> Path:
        """The verified file, fetched if need be. Blocks; StoreError if it cannot be had or `cancelled` is set."""
        if path := self.find(name, model):
            return path
        slot, job = Slot(self.root, name, model), Job(name, progress, cancelled)
        try:
            sources = [parse_source(text) for text in model.sources]
            with self._locked(slot, job):
                path = self.find(name, model) or self._recheck(slot, model, job)
                if path is None:
                    path = self._obtain(slot, model, sources, job)
                return path
        except StoreError as error:
            raise StoreError(f"{name}: {error}") from error

    def verify(
        self,
        name: str,
        model: Model,
        progress: Callable[[Progress], None],
        *,
        cancelled: threading.Event | None = None,
    ) -> Path:
        """Hash the whole file again; StoreError if it is absent or not as recorded (then it is not used again)."""
        slot, job = Slot(self.root, name, model), Job(name, progress, cancelled)
        try:
            with self._locked(slot, job):
                record = slot.read()
                if record is None or (stat := stat_file(slot.path(record))) is None:
                    raise StoreError("not here")
                sha256 = hash_file(slot.path(record), job)
                if sha256 != record.sha256 or not fits(record, model):
                    slot.write(msgspec.structs.replace(record, damaged=True))
                    wanted = record.sha256 if sha256 != record.sha256 else model.sha256
                    raise StoreError(f"wrong checksum: sha256 is {sha256}, expected {wanted}: {slot.path(record)}")
                slot.write(refreshed(record, make_record(name=name, source="", sha256=sha256, stat=stat)))
                return slot.path(record)
        except StoreError as error:
            raise StoreError(f"{name}: {error}") from error

    def remove(self, name: str, model: Model) -> Removed:
        """Remove the file, what there is of one, and its record; a file of the user's own stays."""
        slot, job = Slot(self.root, name, model), Job(name, lambda _: None, None)
        if not slot.folder.exists():
            return Removed(0, None)
        with self._locked(slot, job), disk_errors(slot.folder):
            record = slot.read()
            freed = sum(p.stat().st_size for p in slot.folder.rglob("*") if p.is_file() and p.suffix != ".json")
            shutil.rmtree(slot.folder)
        own = Path(record.own_path) if record and record.own_path else None
        return Removed(freed, own if own and own.exists() else None)

    def entries(self, models: Mapping[str, Model]) -> list[Entry]:
        """How every model stands; fast."""
        return [self._entry(name, model) for name, model in models.items()]

    def shares(self, name: str, models: Mapping[str, Model]) -> list[str]:
        """The other names of the file that `name` has."""
        key = Slot(self.root, name, models[name]).key
        return [n for n, m in models.items() if n != name and Slot(self.root, n, m).key == key]

    def _entry(self, name: str, model: Model) -> Entry:
        slot = Slot(self.root, name, model)
        record, role = slot.read(), model.role or name
        if record is not None and (stat := stat_file(slot.path(record))) is not None:
            state = "present" if fits(record, model) and slot.intact(record) else "changed"
            path = slot.path(record)
            return Entry(name, role, state, stat.st_size, record.source, record.sha256, record.quantized, path)
        unfinished = slot.unfinished()
        state = "absent" if unfinished is None else "partial"
        return Entry(name, role, state, unfinished or 0, None, model.sha256, None, None)

    @contextmanager
    def _locked(self, slot: Slot, job: Job) -> Iterator[None]:
        with disk_errors(slot.folder):
            slot.folder.mkdir(parents=True, exist_ok=True)
            slot.lock.parent.mkdir(parents=True, exist_ok=True)
        lock, waiting = filelock.FileLock(slot.lock), False
        while not lock.is_locked:
            with disk_errors(slot.lock):
                try:
                    lock.acquire(timeout=_LOCK_POLL_S, poll_interval=_LOCK_POLL_S / 4)
                except filelock.Timeout:
                    job.check()
                    if not waiting:
                        log.info("%s: another process works on this file; waiting for it", job.name)
                    waiting = True
        try:
            with disk_errors(slot.folder):
                slot.folder.mkdir(parents=True, exist_ok=True)  # a process we waited for may have removed it
                for left in slot.folder.glob("tmp-*"):  # of a process that was killed
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield
        finally:
            lock.release()
            with disk_errors(slot.folder):
                if slot.folder.is_dir() and not any(slot.folder.iterdir()):
                    slot.folder.rmdir()

    def _recheck(self, slot: Slot, model: Model, job: Job) -> Path | None:
        """A file is there, but not as its record says: hash it, keep it if it is the right one, else delete it."""
        record, stat = slot.read(), stat_file(slot.file)
        if stat is None or (record and record.own_path):
            return None
        expected = record.sha256 if record else (model.sha256 if not model.quantize else None)
        if expected is not None:
            log.info("%s: %s changed since it was verified; hashing it again", job.name, slot.file)
            if hash_file(slot.file, job) == expected and (record is None or fits(record, model)):
                new = make_record(name=job.name, source="found in the store", sha256=expected, stat=stat)
                slot.write(refreshed(record, new) if record else new)
                return slot.file
        log.warning("%s: %s is damaged; fetching it again", job.name, slot.file)
        with disk_errors(slot.file):
            slot.file.unlink()
        return None

    def _obtain(self, slot: Slot, model: Model, sources: list[Source], job: Job) -> Path:
        before = slot.read()
        if model.quantize:
            return self._requantise(slot, model, model.quantize, sources, job)
        # No checksum in the configuration: what was fetched first is trusted, and must not change later.
        pinned = before.sha256 if before and not before.own_path else None
        got = obtain(sources, slot.file, Wanted(model.sha256, model.size, pinned), job, self._downloader)
        own = got.path if got.own else None
        record = make_record(name=job.name, source=got.source, sha256=got.sha256, stat=got.stat, own_path=own)
        slot.write(record)
        return slot.path(record)

    def _requantise(self, slot: Slot, model: Model, kind: str, sources: list[Source], job: Job) -> Path:
        got = self._original(slot, model, sources, job)
        target = slot.folder / "tmp-quantized.gguf"
        with disk_errors(slot.folder):
            quantize(got.path, target, kind, job, self._quantizer)
            stat = target.stat()
        sha256 = hash_file(target, job)
        publish(target, slot.file)
        made_of = Quantized(type=kind, from_sha256=got.sha256, from_size=got.stat.st_size)
        slot.write(make_record(name=job.name, source=got.source, sha256=sha256, stat=stat, quantized=made_of))
        with disk_errors(slot.original):
            slot.original.unlink(missing_ok=True)
        return slot.file

    def _original(self, slot: Slot, model: Model, sources: list[Source], job: Job) -> Got:
        """What to requantise: another model's file, one that an earlier try left here, or fetched now."""
        plain = model.model_copy(update={"quantize": None})
        other = Slot(self.root, job.name, plain)
        record = other.read()
        if record and fits(record, plain) and other.intact(record):
            path = other.path(record)
            return Got(path, record.source, record.sha256, path.stat(), own=True)
        stat = stat_file(slot.original)
        if stat is not None and model.sha256 and hash_file(slot.original, job) == model.sha256:
            return Got(slot.original, "found in the store", model.sha256, stat, own=False)
        return obtain(sources, slot.original, Wanted(model.sha256, model.size), job, self._downloader)
