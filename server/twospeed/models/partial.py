"""A file as far as it has come: its bytes on disk, their running sha256, and a note of where they are from.

Knows nothing of the network. A later process resumes it, but only after hashing again what lies there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from .job import Job, WrongFileError, disk_errors, log, need_space

_CHUNK = 2**20


class State(msgspec.Struct, kw_only=True):
    """Beside the bytes: who gave them. `whole` counts a wheel source's finished parts, `whole_size` their bytes."""

    source: str
    validator: str | None = None  # what If-Range needs
    total: int | None = None
    whole: int = 0
    whole_size: int = 0


class Partial:
    """Use as a context manager; `finish` moves the file to its place. What isn't finished stays, to be resumed."""

    def __init__(self, folder: Path, expected: int | None, job: Job) -> None:
        self.folder = folder
        self.path = folder / "model.partial"
        self.size = 0
        self.expected = expected
        self.state: State | None = None
        self.resumed = False
        self._state_path = folder / "model.partial.json"
        self._job = job
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_unfinished()

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    @property
    def total(self) -> int | None:
        return self.expected or (self.state.total if self.state else None)

    def resume(self, source: str, *, whole_parts: bool = False) -> State | None:
        """Take up what `source` gave an earlier process, if anything; `whole_parts`: its finished parts only."""
        state = self._read_state()
        if state is None or state.source != source:
            return None
        with disk_errors(self.path):
            self._file = self.path.open("r+b")
            if whole_parts:
                if os.fstat(self._file.fileno()).st_size < state.whole_size:
                    return None
                self._file.truncate(state.whole_size)
            self._rehash(self._file, state.total)
        self.state, self.resumed = state, self.size > 0
        need_space(self.folder, max(0, (self.total or 0) - self.size))
        return state

    def restart(self, state: State) -> None:
        """Begin anew with bytes from `state.source`."""
        self.discard()
        self.state = state
        need_space(self.folder, self.total or 0)
        self.save()
        with disk_errors(self.path):
            self._file = self.path.open("wb")

    def append(self, data: bytes) -> None:
        if self._file is None:
            raise RuntimeError("append before restart or resume")
        total = self.total
        if total is not None and self.size + len(data) > total:
            raise WrongFileError(f"gives more than the expected {total} bytes")
        with disk_errors(self.path):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)
        self._job.tick("downloading", self.size, total)

    def save(self, *, whole: int | None = None) -> None:
        """Note the state; `whole`: that many parts are finished."""
        if self.state is None:
            raise RuntimeError("save before restart or resume")
        with disk_errors(self.path):
            if whole is not None and self._file is not None:
                self._file.flush()
                self.state.whole, self.state.whole_size = whole, self.size
            write_json(self._state_path, self.state)

    def finish(self, path: Path) -> None:
        """Move the file to `path`: all of it or nothing."""
        if self._file is None:
            raise RuntimeError("finish before restart or resume")
        with disk_errors(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self.path.replace(path)
            self._state_path.unlink(missing_ok=True)

    def discard(self) -> None:
        self._close_unfinished()
        with disk_errors(self.path):
            self.path.unlink(missing_ok=True)
            self._state_path.unlink(missing_ok=True)
        self.size, self.state, self.resumed, self._hash = 0, None, False, hashlib.sha256()

    def _close_unfinished(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
        except OSError as error:  # its last buffer didn't fit the disk: a resumed pull fetches that again
            log.debug("%s: %s", self.path, error)

    def _read_state(self) -> State | None:
        try:
            return msgspec.json.decode(self._state_path.read_bytes(), type=State) if self.path.is_file() else None
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _rehash(self, file: BinaryIO, total: int | None) -> None:
        while chunk := file.read(_CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)
            self._job.tick("verifying", self.size, self.expected or total)


def hash_file(path: Path, job: Job) -> str:
    with disk_errors(path), path.open("rb") as file:
        digest, done, total = hashlib.sha256(), 0, os.fstat(file.fileno()).st_size
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            job.tick("verifying", done, total)
    return digest.hexdigest()


def write_json(path: Path, value: msgspec.Struct) -> None:
    """Replace `path` as a whole, so that no reader ever sees half of it."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
