"""Keeps one engine process alive: starts it, carries messages, restarts it with backoff when it dies.

A crash loop ends at a cap, in a state that health checks can see. Knows nothing of what the messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import zmq
import zmq.asyncio

from . import messages

_log = logging.getLogger("twospeed.engine")

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
_MAX_CRASHES = 5
_WITHIN_S = 120.0
_STOP_S = 5.0


class OnDeath(Protocol):
    """Called when the child is gone; what it sends then goes to the next child, if one is started."""

    def __call__(self, *, restarting: bool) -> None: ...


class Supervisor:
    """One child process at a time, each with sockets of its own, so that nothing of a dead one is left."""

    def __init__(
        self,
        received: Callable[[messages.FromEngine], None],
        died: OnDeath,
        *,
        template_timeout_s: float,
        costs_folder: Path,
        trace: Path | None = None,
    ) -> None:
        self._received = received
        self._died = died
        self._arguments = [str(template_timeout_s), str(costs_folder), *([str(trace)] if trace else [])]
        self._context = zmq.asyncio.Context()
        # Not TMPDIR: a socket's path may have 107 bytes at most, 103 on macOS, where TMPDIR takes half of them.
        self._folder = Path(tempfile.mkdtemp(prefix="twospeed-", dir="/tmp"))
        self._starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._out: zmq.asyncio.Socket | None = None
        self._backlog: list[messages.ToEngine] = []
        self._life: asyncio.Task[None] | None = None
        self._crashes: deque[float] = deque(maxlen=_MAX_CRASHES)
        self.failed = False
        """It crashed too often and was given up."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.returncode is None else None

    async def start(self) -> None:
        started = asyncio.Event()
        self._life = asyncio.create_task(self._live(started))
        waiter = asyncio.create_task(started.wait())
        await asyncio.wait({waiter, self._life}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._life.done():
            self._life.result()

    def send(self, message: messages.ToEngine) -> None:
        """To the child; to the next one while there is none. Never blocks."""
        if self._out is None:
            if not isinstance(message, messages.Cancel):
                self._backlog.append(message)
            return
        self._out.send(messages.encode(message))

    async def close(self) -> None:
        """End the child, gently at first."""
        life, process = self._life, self._process
        self._life = None
        if process and process.returncode is None:
            self.send(messages.Stop())
            try:
                await asyncio.wait_for(process.wait(), _STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
        if life:
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await life
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _live(self, started: asyncio.Event) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            code = await self._one_life(started)
            if self._life is None:
                return
            now = time.monotonic()
            self._crashes.append(now)
            full = len(self._crashes) == _MAX_CRASHES
            if full and now - self._crashes[0] < _WITHIN_S:
                self.failed = True
                _log.error("the engine died %d times in %.0f s; giving up", _MAX_CRASHES, now - self._crashes[0])
                self._died(restarting=False)
                return
            _log.error("the engine died (exit code %s) after %.1f s; restarting", code, now - began)
            self._died(restarting=True)
            if now - began > _WITHIN_S:
                pause = _FIRST_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _one_life(self, started: asyncio.Event) -> int:
        """Run one child until it ends; returns its exit code."""
        self._starts += 1
        to_engine, from_engine = (f"ipc://{self._folder}/{self._starts}{way}" for way in "ab")
        # Not an asyncio socket: its futures cost more than all the rest of a token's way through the gateway.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(self._context.underlying)
        inbound = context.socket(zmq.PULL)
        inbound.setsockopt(zmq.RCVHWM, 0)
        inbound.bind(from_engine)
        outbound: zmq.asyncio.Socket = self._context.socket(zmq.PUSH)
        outbound.setsockopt(zmq.SNDHWM, 0)
        outbound.bind(to_engine)
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()
        descriptor: int = inbound.fileno()
        loop.add_reader(descriptor, self._read, inbound, broken)
        try:
            # stdin is never written: its end tells the child that we are gone.
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "twospeed.engine.worker",
                to_engine,
                from_engine,
                *self._arguments,
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            self._out = outbound
            backlog, self._backlog = self._backlog, []
            for message in backlog:
                self.send(message)
            started.set()
            died: asyncio.Future[int] = asyncio.ensure_future(process.wait())
            waiting: set[asyncio.Future[Any]] = {died, broken}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if broken.done():
                process.kill()
                _log.error("the engine sent nonsense", exc_info=broken.exception())
            return await died
        finally:
            self._out = None
            loop.remove_reader(descriptor)
            broken.cancel()
            if self._process and self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
            inbound.close(linger=0)
            outbound.close(linger=0)

    def _read(self, socket: zmq.Socket[bytes], broken: asyncio.Future[None]) -> None:
        """Take all messages: zmq's descriptor tells of new ones only when there were none."""
        try:
            while True:
                self._received(messages.decode_from_engine(socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return
        except Exception as error:
            if not broken.done():
                broken.set_exception(error)
