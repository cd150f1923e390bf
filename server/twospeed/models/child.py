"""Run one child process to its end: bounded in time, ended when the job is cancelled, its last words kept.

Knows nothing of what it runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_POLL_S = 0.1
_TERM_S = 3.0


def run_child(
    command: Sequence[str], *, tick: Callable[[], None], timeout_s: float, env: dict[str, str] | None = None
) -> tuple[int, list[str]]:
    """The exit code and the lines of output. `tick` is called while it runs, and may raise to end it.

    A child that does not end in `timeout_s` is killed; its code is then negative.
    """
    with tempfile.TemporaryFile() as output:  # a file and not a pipe: nobody has to read while it runs
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
        try:
            deadline = time.monotonic() + timeout_s
            while process.poll() is None and time.monotonic() < deadline:
                tick()
                try:
                    process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            _end(process)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return process.returncode, [line.strip() for line in text.splitlines() if line.strip()]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child and what it started; a session of its own makes them one group."""
    if process.poll() is not None:
        return
    for how, patience in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, None)):
        os.killpg(process.pid, how)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


def bytes_under(folder: Path) -> int:
    """What a child has written so far: the only progress that every program shows."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # moved while we looked
            continue
    return total
