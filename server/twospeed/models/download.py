"""Sources behind HTTP: a plain https address, and the Hugging Face hub, which resolves to one.

Streams into a Partial and resumes it with Range and If-Range. Knows nothing of checksums of our own or of records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from .job import Job, SourceError, log
from .partial import Partial, State
from .sources import HfSource, HttpSource

RETRY_DELAYS_S = (0.5, 2.0, 5.0)
_MAX_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TIMEOUT = httpx.Timeout(30, connect=10)
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Target(NamedTuple):
    """Where a source's bytes are now."""

    url: str
    headers: Mapping[str, str]
    size: int | None = None
    sha256: str | None = None


@dataclass
class Downloader:
    """`transport` replaces the network in tests."""

    transport: httpx.BaseTransport | None = None
    delays_s: tuple[float, ...] = field(default=RETRY_DELAYS_S)

    def fetch(self, source: HfSource | HttpSource, partial: Partial, job: Job, sha256: str | None) -> str | None:
        """Fetch the whole file. The sha256 that the source itself claims, if it does."""
        locate: Callable[[], Target]
        if isinstance(source, HfSource):
            locate, key = (lambda: locate_hf(source)), str(source)
        else:
            locate, key = (lambda: Target(source.url, {})), source.url
        target = locate()
        if sha256 and target.sha256 and target.sha256 != sha256:
            raise SourceError(f"has another file: sha256 {target.sha256}, expected {sha256}")
        partial.resume(key)
        failures, best, worked = 0, partial.size, False
        with self._client() as client:
            while True:
                try:
                    while not self._stream(client, target, key, partial, sha256 or target.sha256):
                        log.info("%s: %s: what was here does not fit; starting over", job.name, source)
                    return target.sha256
                except (httpx.TransportError, TransferError) as error:
                    failures = 0 if partial.size > best else failures + 1
                    worked, best = worked or failures == 0, max(best, partial.size)
                    # Only what once worked is worth another try: a dead source makes way for the next at once.
                    if not worked or failures >= len(self.delays_s):
                        raise SourceError(describe(error)) from error
                    log.info("%s: %s: %s; going on at byte %d", job.name, source, describe(error), partial.size)
                    job.sleep(self.delays_s[failures])
                    target = locate()  # a signed address may have run out

    def _client(self) -> httpx.Client:
        try:
            return httpx.Client(timeout=_TIMEOUT, transport=self.transport)
        except OSError as error:  # certificates that the environment names, but that are not there
            raise SourceError(f"TLS: {describe(error)}") from error

    def _stream(self, client: httpx.Client, target: Target, key: str, partial: Partial, sha256: str | None) -> bool:
        """Fetch what is missing. False: what is here is of no use, and gone; nothing was fetched."""
        headers = {**target.headers, "Accept-Encoding": "identity"}
        state = partial.state
        # Without a validator only a checksum can tell whether the rest belongs to what is here.
        if state is not None and partial.size > 0 and (state.validator or sha256):
            headers["Range"] = f"bytes={partial.size}-"
            if state.validator:
                headers["If-Range"] = state.validator
        response = _get(client, target.url, headers)
        try:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise SourceError("answers in a compressed form that was not asked for")
            ranged = "Range" in headers and response.status_code in (206, 416)
            start, total = _range(response)
            if ranged and response.status_code == 416 and (start, total) == (None, partial.size):
                return True  # all of it is here already
            if ranged and start != partial.size:
                partial.discard()
                return False
            if not ranged:
                if response.status_code != 200:
                    raise TransferError(f"HTTP {response.status_code} {response.reason_phrase}".rstrip())
                total = _int(response.headers.get("Content-Length")) or target.size
                if total and partial.expected and total != partial.expected:
                    raise SourceError(f"has another file: {total} bytes, expected {partial.expected}")
                partial.restart(State(source=key, validator=_validator(response), total=total))
            for data in response.iter_raw():
                partial.append(data)
            if total is not None and partial.size < total:
                raise TransferError(f"the transfer ended after {partial.size} of {total} bytes")
            return True
        finally:
            response.close()


class TransferError(SourceError):
    """The transfer broke off, or the server has a bad moment; another try may complete it."""


def describe(error: Exception) -> str:
    """A network error in words; some of httpx's have none of their own."""
    return str(error) or type(error).__name__


def _get(client: httpx.Client, url: str, headers: dict[str, str]) -> httpx.Response:
    """GET, redirects followed by hand: never from https to http, and credentials stay with their host."""
    try:
        first = current = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceError(str(error)) from error
    for _ in range(_MAX_REDIRECTS):
        if current.host != first.host or current.port != first.port:
            headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
        response = client.send(client.build_request("GET", current, headers=headers), stream=True)
        if response.status_code not in _REDIRECTS or "Location" not in response.headers:
            return response
        response.close()
        try:
            following = current.join(response.headers["Location"])
        except httpx.InvalidURL as error:
            raise SourceError(f"redirects to no valid address: {error}") from error
        if following.scheme != "https" and (first.scheme, following.scheme) != ("http", "http"):
            raise SourceError("redirects to an address that is not https")
        current = following
    raise SourceError("redirects too often")


def _range(response: httpx.Response) -> tuple[int | None, int | None]:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return (None, None) if match is None else (_int(match[1]), _int(match[2]))


def _validator(response: httpx.Response) -> str | None:
    """What If-Range may hold: a strong ETag, else the date."""
    etag: str = response.headers.get("ETag", "")
    date: str | None = response.headers.get("Last-Modified")
    return etag if etag.startswith('"') else date


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def locate_hf(source: HfSource) -> Target:
    """Ask the hub (HF_ENDPOINT, HF_TOKEN and the like are huggingface_hub's business) where the file is."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(source.repo, source.path, revision=source.revision)
    try:
        found = get_hf_file_metadata(url)
    except Exception as error:  # its HTTP library changes between its versions, so its errors have no common type
        raise SourceError(describe(error).splitlines()[0]) from error
    same_host = urlsplit(url).netloc == urlsplit(found.location).netloc
    if urlsplit(found.location).scheme != "https" and not (same_host and url.startswith("http:")):
        raise SourceError("the hub names an address that is not https")
    token = get_token() if same_host else None  # it never leaves the hub
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    etag = found.etag or ""
    # For a file in large-file storage the hub's ETag is its sha256; a git blob's is shorter.
    return Target(found.location, headers, found.size, etag if _SHA256.fullmatch(etag) else None)
