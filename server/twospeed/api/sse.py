"""Server-sent events: the only place that writes them. Knows no event's meaning but errors and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from starlette.types import Send

from ..errors import ApiError

KEEP_ALIVE_S = 15.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]


class EventStream:
    """One response of events: `start` sends status 200 and headers, `finish`, `fail` or `abandon` ends it.

    While nothing is written a comment goes out every KEEP_ALIVE_S, so that no proxy takes it for dead.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._written = 0.0

    async def start(self) -> None:
        """Send status and headers; from here on an error can only be an event."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        self._written = self._loop.time()
        self._keeper = self._loop.create_task(self._keep_alive())

    async def write(self, events: Iterable[bytes]) -> None:
        """Send events, each one a JSON text, in one piece."""
        body = b"".join([b"data: %b\n\n" % event for event in events])
        self._written = self._loop.time()
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish(self) -> None:
        """The good end: [DONE]."""
        await self._end(b"data: [DONE]\n\n")

    async def fail(self, error: ApiError) -> None:
        """The bad end: an error event and no [DONE], so no client takes what it has for the whole."""
        await self._end(b"data: %b\n\n" % msgspec.json.encode(error.body()))

    def abandon(self) -> None:
        """The client is gone: write no more."""
        self._keeper.cancel()

    async def _end(self, body: bytes) -> None:
        self._keeper.cancel()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _keep_alive(self) -> None:
        while True:
            idle = self._loop.time() - self._written
            if idle >= KEEP_ALIVE_S:
                self._written = self._loop.time()
                await self._send({"type": "http.response.body", "body": b": keep-alive\n\n", "more_body": True})
                idle = 0.0
            await asyncio.sleep(KEEP_ALIVE_S - idle)
