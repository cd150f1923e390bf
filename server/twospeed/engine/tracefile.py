"""A file that lines are appended to without ever holding up, or ending, whoever writes them.

Lines wait in memory for a thread that writes them once a second. A disk that is full or hangs ends the recording, with
one line in the log.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections import deque
from pathlib import Path

from .trace import TraceError, check_first

_log = logging.getLogger("twospeed.engine")

_EVERY_S = 1.0
_MOST_BYTES = 64 * 2**20  # that wait: the disk hangs
_CLOSE_S = 2.0


def open_trace(path: Path) -> int:
    """A descriptor that appends to the trace at `path`, which only its owner may read. A new life begins on a line of
    its own. Raises OSError, and TraceError for a file that is something else."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise TraceError("it is not a regular file")
        size = os.fstat(descriptor).st_size
        if size:
            check_first(os.pread(descriptor, 4096, 0).partition(b"\n")[0])
        os.fchmod(descriptor, 0o600)  # after the look: a file that is no trace stays as it is
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class TraceFile:
    """Append lines with `write`, from one thread."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, TraceError."""
        self._path = path
        self._descriptor = open_trace(path)
        self._lines: deque[bytes] = deque()
        self._taken = self._given = 0  # bytes, each counted by one thread
        self._stopped = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Never blocks, never raises; does nothing once the recording has stopped."""
        if self._stopped:
            return
        if self._given - self._taken > _MOST_BYTES:
            self._stop("the disk does not keep up")
            return
        self._given += len(line)
        self._lines.append(line)

    def close(self) -> None:
        """Write what waits, unless the disk hangs."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        last = False
        while not last and not self._stopped:
            last = self._closing.wait(_EVERY_S)
            try:
                self._flush()
            except OSError as error:
                self._stop(error.strerror or type(error).__name__)
        os.close(self._descriptor)

    def _flush(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        data = memoryview(b"".join(lines))
        self._taken += len(data)
        while data:
            data = data[os.write(self._descriptor, data) :]

    def _stop(self, why: str) -> None:
        if not self._stopped:
            self._stopped = True
            self._lines.clear()
            _log.error("the trace %s stops here: %s", self._path, why)
