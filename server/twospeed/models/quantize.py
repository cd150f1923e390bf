"""Requantise a file once, in a child process: the native library never comes into this one.

Knows nothing of records; the caller moves the result to its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .child import run_child
from .job import Job, StoreError, need_space

_TIMEOUT_S = 2 * 3600

Quantizer = Callable[[Path, Path, str], list[str]]


def llama_command(source: Path, target: Path, kind: str) -> list[str]:
    module = ["-m", "twospeed.engine.runner.llama_jobs"]
    return [sys.executable, "-P", *module, "--quantize", str(source), str(target), kind]


def quantize(source: Path, target: Path, kind: str, job: Job, command: Quantizer) -> None:
    """Write `source` as `kind` to `target`, which is removed again if that fails."""
    need_space(target.parent, source.stat().st_size)

    def tick() -> None:
        job.tick("quantizing", target.stat().st_size if target.exists() else 0, None)

    done = False
    try:
        code, lines = run_child(command(source, target, kind), tick=tick, timeout_s=_TIMEOUT_S)
        if code != 0 or not target.is_file():
            raise StoreError(f"requantising to {kind} failed: {lines[-1] if lines else f'ended with code {code}'}")
        done = True
    finally:
        if not done:
            target.unlink(missing_ok=True)
