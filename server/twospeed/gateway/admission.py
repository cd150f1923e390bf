"""Permits: how many sequences a model may have inside this server, queued and running together.

A permit is taken before work and held until the last byte; it is released exactly once, by leaving its `with`.
Pure bookkeeping: knows neither HTTP nor the engine, which keeps its own FIFO of what the slots can't take yet.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from ..config import Config
from ..errors import ApiError


class Permit:
    """Places for some sequences of one model; a context manager, used once."""

    __slots__ = ("_admission", "_open", "model", "sequences")

    def __init__(self, admission: Admission, model: str, sequences: int) -> None:
        self._admission = admission
        self._open = False
        self.model = model
        self.sequences = sequences

    def __enter__(self) -> Self:
        self._admission._take(self)
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if not self._open:
            raise RuntimeError("a permit was released twice")
        self._open = False
        self._admission._give_back(self)


class Admission:
    """Counts the permits of all models. Used from one event loop."""

    def __init__(self, config: Config) -> None:
        queue = config.server.max_queue
        self._limit = {name: model.slots + queue for name, model in config.models.items()}
        self._held = dict.fromkeys(config.models, 0)
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def permit(self, model: str, sequences: int) -> Permit:
        """A permit to enter with `with`.

        Entering raises `queue_full` while the model has too many sequences, `shutting_down` after `close()`,
        and `invalid_value` where so many sequences could never be admitted at once.
        """
        return Permit(self, model, sequences)

    def held(self, model: str) -> int:
        """Sequences of `model` that hold a permit now."""
        return self._held[model]

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Admit nobody any more; permits that are held stay valid."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until no permit is held."""
        await self._idle.wait()

    def _take(self, permit: Permit) -> None:
        if self._closed:
            raise ApiError("shutting_down", "The server is shutting down.")
        limit = self._limit[permit.model]
        if permit.sequences > limit:
            raise ApiError(
                "invalid_value",
                f"This asks for {permit.sequences} sequences at once; model {permit.model!r} takes at most {limit}.",
                param="n",
            )
        if self._held[permit.model] + permit.sequences > limit:
            raise ApiError("queue_full", f"Model {permit.model!r} has too many requests waiting; try again soon.")
        self._held[permit.model] += permit.sequences
        self._idle.clear()

    def _give_back(self, permit: Permit) -> None:
        self._held[permit.model] -= permit.sequences
        if not any(self._held.values()):
            self._idle.set()
