"""Permits: how many sequences may be inside this server, for each model and service tier, seated and waiting together.

A permit is taken before work and held until the last byte; it is released exactly once, by leaving its `with`.
Pure bookkeeping: knows neither HTTP nor the engine. The engine runs up to `slots` sequences of a tier and keeps its
own line of the rest; where a tier has fewer seats than that, its line is here, and `Permit.seat` waits in it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from ..config import Config
from ..errors import ApiError
from ..types import TIERS, ModelInfo, ServiceTier
from .seats import Room, Seats
from .tiers import queue_of, seats_of

_LONGEST_RETRY_S = 60


class Permit:
    """Places for some sequences of one model; a context manager, used once.

    `tier` is what was asked for, and once entered the tier that serves it. `patience_s`: the longest wait for a seat
    that its client puts up with; None: any.
    """

    __slots__ = ("_admission", "_open", "_seat", "_served", "model", "patience_s", "sequences", "tier")

    def __init__(
        self, admission: Admission, model: str, tier: ServiceTier, sequences: int, patience_s: float | None
    ) -> None:
        self._admission = admission
        self._open = False
        self._served = False
        self._seat = asyncio.Event()
        self.model = model
        self.tier = tier
        self.sequences = sequences
        self.patience_s = patience_s

    def __enter__(self) -> Self:
        self._admission._take(self)
        self._open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if not self._open:
            raise RuntimeError("a permit was released twice")
        self._open = False
        self._admission._give_back(self, served=self._served)

    def seated(self) -> None:
        self._seat.set()

    async def seat(self) -> None:
        """Wait for a seat, where the engine would not make this wait for itself."""
        if self._admission._keeps_line(self.model, self.tier):
            await self._seat.wait()

    def served(self) -> None:
        """Its work has begun, so the time until it ends says how long seats are held."""
        self._served = True


class Admission:
    """Counts the permits of all models and tiers. Used from one event loop."""

    def __init__(
        self,
        config: Config,
        info: Callable[[str], ModelInfo | None] = lambda model: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`info`: what is known of a model, None before it is loaded; it says how many streams keep their speed."""
        self._config = config
        self._info = info
        self._lanes = {(model, tier): self._lane(model, tier, clock) for model in config.models for tier in TIERS}
        self._closed = False
        self._permits = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def permit(self, model: str, tier: ServiceTier, sequences: int, *, patience_s: float | None = None) -> Permit:
        """A permit to enter with `with`.

        Entering raises `queue_full` or `resource_unavailable` while the tier has too many sequences and isn't one that
        is downgraded, `queue_threshold_exceeded` where the wait would be longer than `patience_s`, `shutting_down`
        after `close()`, and `invalid_value` where so many sequences could never be admitted at once.
        """
        return Permit(self, model, tier, sequences, patience_s)

    def held(self, model: str) -> int:
        """Sequences of `model` that hold a permit now, in all tiers."""
        return sum(self._lanes[model, tier].room().held for tier in TIERS)

    def room(self, model: str, tier: ServiceTier) -> Room:
        """Seats and line of `tier` on `model`."""
        return self._lanes[model, tier].room()

    def reload(self, config: Config) -> None:
        """Go by `config` from now on. It has the same models; who is inside stays, and may be more than it allows."""
        self._config = config
        for lane in self._lanes.values():
            lane.fill()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Admit nobody any more; permits that are held stay valid."""
        self._closed = True

    async def idle(self) -> None:
        """Wait until no permit is held."""
        await self._idle.wait()

    def _lane(self, model: str, tier: ServiceTier, clock: Callable[[], float]) -> Seats:
        return Seats(
            lambda: seats_of(self._config, model, tier, self._info(model)), lambda: queue_of(self._config, tier), clock
        )

    def _keeps_line(self, model: str, tier: ServiceTier) -> bool:
        return self.room(model, tier).seats < self._config.models[model].slots

    def _take(self, permit: Permit) -> None:
        if self._closed:
            raise ApiError("shutting_down", "The server is shutting down.")
        if self._config.service_tiers.of(permit.tier).over == "downgrade" and self._why_full(permit) is not None:
            permit.tier = "default"
        if (full := self._why_full(permit)) is not None:
            raise full
        lane = self._lanes[permit.model, permit.tier]
        if permit.patience_s is not None and (wait := lane.expected_wait(permit.sequences)) > permit.patience_s:
            raise ApiError(
                "queue_threshold_exceeded",
                f"This would wait about {wait:.1f} s for a seat in tier {permit.tier!r}, longer than its "
                f"queue_threshold of {1000 * permit.patience_s:g} ms.",
                retry_after=_retry_after(wait - permit.patience_s),
            )
        lane.enter(permit)
        self._permits += 1
        self._idle.clear()

    def _why_full(self, permit: Permit) -> ApiError | None:
        """Why its tier has no place for `permit`."""
        model, tier, wanted = permit.model, permit.tier, permit.sequences
        lane = self._lanes[model, tier]
        room = lane.room()
        # The line is for calls that fit into the seats; the engine takes larger ones apart, this line does not.
        most = room.seats if self._keeps_line(model, tier) else room.seats + room.queue
        if wanted > most > 0:
            return ApiError(
                "invalid_value",
                f"This asks for {wanted} sequences at once; model {model!r} takes at most {most} in tier {tier!r}.",
                param="n",
            )
        if most and room.held + wanted <= room.seats + room.queue:
            return None
        retry = _retry_after(lane.expected_wait(wanted)) if most else None
        if tier == "flex":
            text = f"Model {model!r} has no capacity left for tier 'flex' now; try again later, or use another tier."
            return ApiError("resource_unavailable", text, retry_after=retry)
        text = f"Model {model!r} has too many requests waiting in tier {tier!r}; try again soon."
        return ApiError("queue_full", text, retry_after=retry)

    def _give_back(self, permit: Permit, *, served: bool) -> None:
        self._lanes[permit.model, permit.tier].leave(permit, served=served)
        self._permits -= 1
        if not self._permits:
            self._idle.set()


def _retry_after(seconds: float) -> int:
    return min(max(math.ceil(seconds), 1), _LONGEST_RETRY_S)
