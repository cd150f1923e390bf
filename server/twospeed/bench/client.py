"""A lean HTTP client for measuring: it stamps what arrives and parses only after the stream is over.

The server under test shares the cores with this process, so nothing is decoded while tokens flow.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any
from urllib.parse import urlsplit

import msgspec

_BREAK = re.compile(rb"\r?\n\r?\n")  # some servers end lines of events with \r\n


class BenchError(Exception):
    """Something could not be measured; str() is one line for a person."""


class SilentError(BenchError):
    """Nothing was said: no answer, or one without text."""


class RefusedError(BenchError):
    """The server answered, with an error. `headers_at`: when its first bytes were there."""

    def __init__(self, status: int, text: str, headers_at: float) -> None:
        super().__init__(text)
        self.status = status
        self.headers_at = headers_at


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. `body_at(n)`: when the first n bytes of the body were there (`time.perf_counter()`)."""

    status: int
    body: bytes
    segments: list[tuple[int, int]]  # (start in body, start in what arrived), ascending
    ends: list[int]  # where each arrival ends in what arrived
    times: list[float]  # of each arrival

    def body_at(self, length: int) -> float:
        at = max(0, length - 1)
        segment = self.segments[bisect_right(self.segments, at, key=lambda s: s[0]) - 1]
        return self.times[bisect_left(self.ends, segment[1] + at - segment[0] + 1)]

    def events(self) -> list[tuple[float, bytes]]:
        """Server-sent events that came whole: when, and their data. Comments are left out."""
        found = []
        start = 0
        for end in _BREAK.finditer(self.body):
            if self.body.startswith(b"data: ", start):
                found.append((self.body_at(end.end()), self.body[start + 6 : end.start()]))
            start = end.end()
        return found


def decode(arrivals: list[tuple[float, bytes]]) -> Answer:
    """Take an HTTP/1.1 response apart; one that broke off gives what there is of it. Raises BenchError."""
    raw = b"".join(data for _, data in arrivals)
    ends = list(accumulate(len(data) for _, data in arrivals))
    times = [at for at, _ in arrivals]
    head_end = raw.find(b"\r\n\r\n")
    if head_end < 0 or not raw.startswith(b"HTTP/1."):
        raise SilentError("the server closed the connection without an answer")
    head, start = raw[:head_end].lower(), head_end + 4
    status = int(raw[9:12])
    if b"\r\ntransfer-encoding: chunked" not in head:
        return Answer(status, raw[start:], [(0, start)], ends, times)
    body, segments = _dechunked(raw, start)
    return Answer(status, body, segments, ends, times)


def _dechunked(raw: bytes, start: int) -> tuple[bytes, list[tuple[int, int]]]:
    body = bytearray()
    segments: list[tuple[int, int]] = []
    while (line_end := raw.find(b"\r\n", start)) >= 0:
        size = int(raw[start:line_end].split(b";")[0], 16)
        if size == 0:
            break
        start = line_end + 2
        segments.append((len(body), start))
        body += raw[start : start + size]
        start += size + 2
    return bytes(body), segments or [(0, start)]


class Exchange(asyncio.Protocol):
    """One request on a connection of its own, and what came back. `events`: about how many of them so far."""

    def __init__(self, request: bytes) -> None:
        self.sent = time.perf_counter()
        self._request = request
        self._arrivals: list[tuple[float, bytes]] = []
        self.events = 0
        self._awaited = 0
        loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._reached: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._arrivals.append((time.perf_counter(), data))
        self.events += data.count(b"data: ")
        if self.events >= self._awaited:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if not self._reached.done():
            self._reached.set_result(None)

    async def reach(self, events: int) -> None:
        """Wait for so many events (about as many tokens), or the end if that comes first."""
        self._awaited = events
        if self.events < events and not self._closed.done():
            self._reached = asyncio.get_running_loop().create_future()
            await self._reached

    async def answer(self) -> Answer:
        """The whole response. Leaving early, by an error or a cancel, ends the request."""
        try:
            await self._closed
        finally:
            self._transport.abort()
        return decode(self._arrivals)

    @property
    def first_at(self) -> float | None:
        return self._arrivals[0][0] if self._arrivals else None

    def end(self) -> None:
        self._transport.abort()

    def so_far(self) -> Answer:
        """What came until now. Raises BenchError."""
        return decode(self._arrivals)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, and the key it wants."""

    url: str
    key: str | None = None

    async def open(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Exchange:
        """Send a request. Raises BenchError."""
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        data = json.dumps(body).encode() if body is not None else b""
        head = f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n"
        head += f"authorization: Bearer {self.key}\r\n\r\n" if self.key else "\r\n"
        exchange = Exchange(head.encode() + data)
        port = parts.port or (443 if secure else 80)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: exchange, parts.hostname or "", port, ssl=secure or None)
        except OSError as error:
            raise BenchError(f"no server answers at {self.url}: {error.strerror or error}") from error
        return exchange

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a GET. Raises BenchError."""
        answer = await (await self.open("GET", path)).answer()
        try:
            return answer.status, msgspec.json.decode(answer.body)
        except msgspec.DecodeError:
            raise BenchError(f"{self.url}{path}: status {answer.status} and no JSON") from None


class Stream:
    """A streamed completion, of raw text or of chat messages."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.sent = exchange.sent

    @classmethod
    async def start(cls, endpoint: Endpoint, body: Mapping[str, Any]) -> Stream:
        """`body` has a `prompt` or `messages`; the rest that makes it a greedy stream is added."""
        whole = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **body}
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        return cls(await endpoint.open("POST", path, whole))

    @property
    def headers_at(self) -> float | None:
        """When the first bytes of the answer were there."""
        return self._exchange.first_at

    async def reach(self, tokens: int) -> None:
        """Wait for about so many tokens, or the end."""
        await self._exchange.reach(tokens)

    async def more(self, tokens: int) -> None:
        """Wait for about so many more tokens, or the end."""
        await self._exchange.reach(self._exchange.events + tokens)

    async def result(self) -> Result:
        """All of it. Raises BenchError."""
        return read_result(await self._exchange.answer(), self.sent, whole=True)

    def cut(self) -> Result:
        """End it now; what came so far. Raises BenchError."""
        self.end()
        return read_result(self._exchange.so_far(), self.sent, whole=False)

    def end(self) -> None:
        """End it now, whatever came."""
        self._exchange.end()

    def cut_or_none(self) -> Result | None:
        """End it now; None where no text came so far. Raises BenchError where it was refused or failed."""
        self.end()
        return self.so_far()

    def so_far(self) -> Result | None:
        """What came until now, as it goes on; None where that is no text. Raises BenchError as above."""
        try:
            return read_result(self._exchange.so_far(), self.sent, whole=False)
        except SilentError:
            return None


@dataclass(frozen=True, slots=True)
class Result:
    """A stream seen from the client. `times`: when each token's event came; a token that ends inside a
    character, or has no text, comes with a later one, so `tokens` may be more. Counts are 0 where a stream was cut."""

    sent: float
    times: list[float]
    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    timings: dict[str, float]
    usage: dict[str, Any] = field(default_factory=dict)  # as told; empty where it was not
    served: str | None = None  # the service tier that the server said it used
    headers_at: float = 0.0

    @property
    def ttft_ms(self) -> float:
        return (self.times[0] - self.sent) * 1000

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, as the server counts them. 0 where it does not."""
        ms = self.timings.get("prompt_ms", 0.0)
        return 1000 * self.timings["prompt_n"] / ms if ms else 0.0


def read_result(answer: Answer, sent: float, *, whole: bool) -> Result:
    """Read the events of a stream; `whole`: it must have come to its good end. Raises BenchError."""
    if answer.status != 200:
        raise RefusedError(answer.status, _error_text(answer), answer.times[0])
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    timings: dict[str, float] = {}
    served: str | None = None
    done = False
    for at, data in answer.events():
        if data == b"[DONE]":
            done = True
            break
        event = msgspec.json.decode(data)
        if "error" in event:
            raise BenchError(f"the stream failed: {event['error'].get('message')}")
        usage = event.get("usage") or usage
        timings = event.get("timings") or timings
        served = event.get("service_tier") or served
        for choice in event.get("choices") or []:
            text = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            if text or (choice.get("finish_reason") and "text" in choice):
                times.append(at)
                texts.append(text)
    if whole and not done:
        raise BenchError("the stream broke off")
    if not times:
        raise SilentError("the stream had no text")
    return Result(
        sent=sent,
        times=times,
        text="".join(texts),
        tokens=usage.get("completion_tokens", 0),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        timings=timings,
        usage=usage,
        served=served,
        headers_at=answer.times[0],
    )


def _error_text(answer: Answer) -> str:
    try:
        return f"status {answer.status}: {msgspec.json.decode(answer.body)['error']['message']}"
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {answer.status}"
