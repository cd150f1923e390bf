"""Gets a file from the first of its sources that has it: fetch, check, move into place.

A source that fails makes way for the next, with a line that says so. Knows nothing of records and locks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .download import Downloader
from .job import DiskFullError, Job, SourceError, StoreError, WrongFileError, disk_errors, log, size_text
from .partial import Partial, hash_file
from .sources import FileSource, PypiSource, Source
from .wheels import fetch_wheels


class Wanted(NamedTuple):
    """What the file must be. `pinned`: what was fetched before, where the configuration says no sha256."""

    sha256: str | None
    size: int | None
    pinned: str | None = None


class Got(NamedTuple):
    """A whole, checked file. `own`: it is the user's, used in place. `stat` is from before the last hashing."""

    path: Path
    source: str
    sha256: str
    stat: os.stat_result
    own: bool


def obtain(sources: Sequence[Source], target: Path, wanted: Wanted, job: Job, downloader: Downloader) -> Got:
    """Bring the file to `target`, unless a `file:` source has it; StoreError if no source does."""
    failures = []
    for number, source in enumerate(sources, 1):
        try:
            if isinstance(source, FileSource):
                return _own(source, wanted, job)
            sha256 = _fetch(source, target, wanted, job, downloader)
            return Got(target, str(source), sha256, target.stat(), own=False)
        except SourceError as error:
            failures.append(f"{source}: {error}")
            if number < len(sources):
                log.warning("%s: %s: %s; trying the next source", job.name, source, error)
    raise StoreError("; ".join(failures) or "has no sources")


def _own(source: FileSource, wanted: Wanted, job: Job) -> Got:
    try:
        stat = source.path.stat()
    except OSError as error:
        raise SourceError(error.strerror or str(error)) from error
    if not source.path.is_file():
        raise SourceError("is not a file")
    sha256 = hash_file(source.path, job)
    _check(sha256, stat.st_size, wanted.sha256, wanted.size)
    return Got(source.path, str(source), sha256, stat, own=True)


def _fetch(source: Source, target: Path, wanted: Wanted, job: Job, downloader: Downloader) -> str:
    expected = wanted.sha256 or wanted.pinned
    with Partial(target.parent, wanted.size, job) as partial, _leave_no_disk_full(partial):
        while True:
            try:
                claimed = None
                if isinstance(source, PypiSource):
                    fetch_wheels(source, partial, job)
                elif not isinstance(source, FileSource):
                    claimed = downloader.fetch(source, partial, job, expected)
                _check(partial.sha256, partial.size, expected or claimed, wanted.size)
                break
            except WrongFileError as error:
                resumed = partial.resumed
                partial.discard()
                if resumed:  # what lay here, and not the source, may have been wrong
                    log.info("%s: %s: %s; starting over", job.name, source, error)
                    continue
                if wanted.pinned and not wanted.sha256:
                    raise SourceError(
                        f"{error}, as fetched before; `twospeed rm {job.name}` accepts another"
                    ) from error
                raise
        sha256 = partial.sha256
        partial.finish(target)
        return sha256


@contextmanager
def _leave_no_disk_full(partial: Partial) -> Iterator[None]:
    try:
        yield
    except DiskFullError:
        partial.discard()
        raise


def _check(sha256: str, size: int, expected: str | None, expected_size: int | None) -> None:
    if expected_size is not None and size < expected_size:
        raise WrongFileError(f"the file is cut short: {size_text(size)} of {size_text(expected_size)}")
    if expected_size is not None and size > expected_size:
        raise WrongFileError(f"the file has {size} bytes, expected {expected_size}")
    if expected is not None and sha256 != expected:
        raise WrongFileError(f"wrong checksum: sha256 is {sha256}, expected {expected}")


def publish(temporary: Path, target: Path) -> None:
    """Move a file that another process wrote to its place, once it is safely on disk."""
    with disk_errors(temporary):
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
