"""uvicorn as we run it: a shutdown that lets streams finish while the port still answers, and an exit code of 0.

Knows the gateway only as something to drain.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType

import psutil
import uvicorn
from fastapi import FastAPI

from ..gateway.gateway import Gateway
from .protocol import Protocol

# After a drain all that is left is to flush; what then still hangs is a client that doesn't read.
_FLUSH_S = 5
_BACKLOG = 1024


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


class Server(uvicorn.Server):
    """Serves `app`. The first SIGTERM or SIGINT drains `gateway`, then ends; a second one ends at once.

    `on_hangup` is called in the event loop for each SIGHUP, once the server listens.
    """

    def __init__(
        self,
        app: FastAPI,
        gateway: Gateway,
        on_listening: Callable[[], None] = lambda: None,
        on_hangup: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_FLUSH_S,
            )
        )
        self._gateway = gateway
        self._on_listening = on_listening
        self._on_hangup = on_hangup
        self._draining: asyncio.Task[None] | None = None
        self._signalled = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            # Only the main thread may; and before anybody is told where to send the signal, as it would end us.
            if self._on_hangup is not None and threading.current_thread() is threading.main_thread():
                self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
            self._on_listening()

    def stop(self) -> None:
        """Drain and end, as the first signal does. Safe from any thread."""
        self._loop.call_soon_threadsafe(self._begin_drain)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not super's: that closes the port at once, and makes the process die of the signal.
        if self._signalled:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os._exit(128 + sig)
        self._signalled = True
        if self.started:
            self.stop()
        else:
            self.should_exit = True

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._gateway.drain()
        finally:
            self.should_exit = True
