"""What every part of a pull shares: its errors, and the job that reports progress and hears a cancel.

Knows nothing of sources, records or terminals.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger("twospeed.models")

_REPORT_EVERY_S = 0.1
_SPARE_BYTES = 64 * 2**20  # a disk is never filled to its last byte


class StoreError(Exception):
    """A model cannot be had; `str()` is one clear line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class SourceError(StoreError):
    """One source failed; the next may do."""


class WrongFileError(SourceError):
    """A source gave other bytes than the configured ones: what came must not be kept."""


class DiskFullError(StoreError):
    """No room: what came so far must not keep the disk full."""


class Progress(NamedTuple):
    """How far a model is. `total` is None where nobody knows it yet."""

    name: str
    phase: str  # "downloading" | "verifying" | "quantizing"
    done: int
    total: int | None


class Job:
    """One model's pull: every loop in it calls `tick`, which reports now and then and ends the job when cancelled."""

    def __init__(self, name: str, progress: Callable[[Progress], None], cancelled: threading.Event | None) -> None:
        self.name = name
        self._progress = progress
        self._cancelled = cancelled or threading.Event()
        self._last: Progress | None = None
        self._last_at = 0.0

    def check(self) -> None:
        if self._cancelled.is_set():
            raise StoreError("cancelled")

    def sleep(self, seconds: float) -> None:
        self._cancelled.wait(seconds)
        self.check()

    def tick(self, phase: str, done: int, total: int | None) -> None:
        self.check()
        now = time.monotonic()
        new = Progress(self.name, phase, done, total)
        edge = self._last is None or self._last.phase != phase or done == total
        if new != self._last and (edge or now - self._last_at >= _REPORT_EVERY_S):
            self._last, self._last_at = new, now
            self._progress(new)


def size_text(size: int) -> str:
    """`size` in bytes, for people."""
    value, units = float(size), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{value:.3g} {units[0]}"


def need_space(folder: Path, size: int) -> None:
    """Refuse work that would fill the disk, before it starts."""
    free = shutil.disk_usage(folder).free
    if free < (need := size + _SPARE_BYTES):
        raise StoreError(f"not enough disk space: {size_text(need)} needed, {size_text(free)} free in {folder}")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk has to say into one line. Not for network code: its errors are OSErrors too."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk is full: {path}") from error
        raise StoreError(f"{path}: {error.strerror or error}") from error
