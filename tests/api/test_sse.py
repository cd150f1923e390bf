"""What goes over the wire while nothing happens, and how a stream ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from twospeed.api import sse
from twospeed.errors import ApiError


class Sent:
    """An ASGI `send` that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.came = asyncio.Event()

    async def __call__(self, message: Any) -> None:
        self.messages.append(message)
        self.came.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


def test_a_quiet_stream_gets_comments_and_an_ended_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_S", 0.01)

    async def run() -> bytes:
        sent = Sent()
        stream = sse.EventStream(sent)
        await stream.start()
        sent.came.clear()
        await sent.came.wait()
        await stream.write([b"1", b"2"])
        await stream.finish()
        ended = len(sent.messages)
        await asyncio.sleep(0.03)
        assert len(sent.messages) == ended
        return sent.body

    body = asyncio.run(run())
    assert body.startswith(b": keep-alive\n\n")
    assert body.endswith(b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n")


def test_a_failed_stream_ends_with_an_error_and_no_done() -> None:
    async def run() -> Sent:
        sent = Sent()
        stream = sse.EventStream(sent)
        await stream.start()
        await stream.fail(ApiError("engine_died", "gone"))
        return sent

    sent = asyncio.run(run())
    assert json.loads(sent.body.removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert sent.messages[-1]["more_body"] is False
