"""A client that goes away ends its work at once, whatever that work is waiting for."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to answer."""


class UntilGone:
    """`async with UntilGone(receive):` cancels its block when the client disconnects and raises ClientGoneError.

    Enter it after the body was read, as it reads on. Leave it before the last byte is sent: servers report
    the end of a response as a disconnect too. It works like `asyncio.timeout`.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("UntilGone needs a task")
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if not self._gone:
            return
        still_cancelled = self._task.uncancel() > self._cancelling  # by somebody else as well
        if not still_cancelled and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise ClientGoneError from exc

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # what a client sends after its body is of no interest
        self._gone = True
        self._task.cancel()
