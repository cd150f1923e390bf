"""The small file by which `twospeed reload` finds a running server: ROOT/run/PORT.json.

It names the process by id, start time and command line, so that a process which got the same id later is never taken
for it. Written by the server, removed at its end; one that a crash left behind counts for nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Self

import msgspec
import psutil

logger = logging.getLogger(__name__)

# Of the start time, as seen by two processes: the kernel's idea of when it booted moves by a second.
_TOLERANCE_S = 2.0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. `reloads` counts them; `applied` and `notes` tell of the last one."""

    pid: int
    started: float
    command: list[str]
    port: int
    config: str
    reloads: int = 0
    applied: bool = True
    notes: list[str] = []

    def process(self) -> psutil.Process | None:
        """The very process that wrote this, if it still runs."""
        try:
            process = psutil.Process(self.pid)
            same = (
                abs(process.create_time() - self.started) < _TOLERANCE_S
                and process.cmdline() == self.command
                and process.uids().real == os.getuid()
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return None
        return process if same else None


class RunFile:
    """This process's own record, from the first `write` to the end of the `with`.

    A folder that can't be written to is only logged: the server runs, `twospeed reload` doesn't find it.
    """

    def __init__(self, root: Path, *, port: int, config: Path) -> None:
        me = psutil.Process()
        self._path = _folder(root) / f"{port}.json"
        self._record = Record(
            pid=me.pid, started=me.create_time(), command=me.cmdline(), port=port, config=str(config.absolute())
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if (found := _read(self._path)) is not None and found.pid == self._record.pid:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def reloaded(self, *, applied: bool, notes: list[str]) -> None:
        """Tell those who asked for it what came of a reload."""
        self._record = msgspec.structs.replace(
            self._record, reloads=self._record.reloads + 1, applied=applied, notes=notes
        )
        self.write()

    def write(self) -> None:
        """Put down how things stand."""
        fresh = self._path.with_suffix(f".{self._record.pid}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.json.encode(self._record))
            fresh.replace(self._path)  # readers see one or the other, never a half
        except OSError as exc:
            logger.warning("%s can't be written, so `twospeed reload` won't work: %s", self._path, exc.strerror)


def running(root: Path) -> list[tuple[Record, psutil.Process]]:
    """All servers that run with this root."""
    records = [record for path in sorted(_folder(root).glob("*.json")) if (record := _read(path)) is not None]
    return [(record, process) for record in records if (process := record.process()) is not None]


def read(root: Path, port: int) -> Record | None:
    """What the file of `port` says, whoever wrote it."""
    return _read(_folder(root) / f"{port}.json")


def _folder(root: Path) -> Path:
    return root / "run"


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.MsgspecError):
        return None
