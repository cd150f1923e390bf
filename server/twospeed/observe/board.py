"""How the service tiers stand right now: the configuration's promises, and what a Window and the gateway measured.

The structs are what /v1/tiers answers. Knows no HTTP and no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from ..config import Config, ServiceTiers
from ..types import ModelState, ModelStatus, ServiceTier
from .window import ModelSum, Reading, Window


class TierCounts(Protocol):
    """What the gateway lets in, per model and service tier."""

    def seats(self, model: str, tier: ServiceTier) -> int:
        """Sequences that may run at the same time."""
        ...

    def held(self, model: str, tier: ServiceTier) -> int:
        """Sequences that were let in, running or waiting."""
        ...


class FirstToken(msgspec.Struct, frozen=True):
    """Time to the first token; null where there was none lately."""

    p50: float | None
    p95: float | None
    samples: int


class TierSeats(msgspec.Struct, frozen=True):
    """One service tier of one model. `share_used` is its part of what the device computed for all."""

    model: str
    seats: int
    seats_in_use: int
    queue: int
    tokens_per_second: float
    share_used: float
    ttft_ms: FirstToken


class TierStanding(msgspec.Struct, frozen=True):
    """One service tier. `share_promised`: of the device's time, where all tiers want it."""

    tier: ServiceTier
    precedence: str
    share_promised: float
    share_used: float
    tokens_per_second: float
    models: list[TierSeats]


class ModelStanding(msgspec.Struct, frozen=True):
    """One model. Step time and rows are means over the window, null without a step in it; the KV cache is as it was
    after the last step."""

    model: str
    state: ModelState
    detail: str
    running: int
    waiting: int
    steps_per_second: float
    step_ms: float | None
    decode_rows: float | None
    prefill_rows: float | None
    kv_used_tokens: int
    kv_total_tokens: int


class TierBoard(msgspec.Struct, frozen=True):
    """All of it. `device_busy` is the part of the last `window_s` seconds in which the device computed."""

    object: str
    window_s: float
    device_busy: float
    tiers: list[TierStanding]
    models: list[ModelStanding]


class Board:
    """Draws a TierBoard whenever it is asked for one."""

    def __init__(
        self,
        config: Config,
        window: Window,
        counts: TierCounts,
        status: Callable[[str], ModelStatus],
        policies: Callable[[], ServiceTiers],
    ) -> None:
        """`policies`: those in effect now; a reload may change them."""
        self.models = list(config.models)
        self.window = window
        self._counts = counts
        self._status = status
        self.policies = policies

    def draw(self) -> TierBoard:
        reading = self.window.read()
        shares = self.policies().promised()
        return TierBoard(
            object="tiers",
            window_s=round(reading.seconds, 3),
            device_busy=round(min(reading.device_ms / 1000 / reading.seconds, 1.0), 4) if reading.seconds > 0 else 0.0,
            tiers=[
                self._tier(tier, policy.precedence, shares[tier], reading) for tier, policy in self.policies().each()
            ],
            models=[self._model(name, reading) for name in self.models],
        )

    def seats(self, model: str, tier: ServiceTier) -> tuple[int, int, int]:
        """Of a model's tier: its seats, those in use, and the sequences that wait for one."""
        seats, held = self._counts.seats(model, tier), self._counts.held(model, tier)
        # Some wait though their tier has a seat left, as the model's slots or its KV cache are full; that the
        # engine knows, as of its last step.
        last = self.window.last(model)
        waiting = next((step.waiting for step in last.tiers if step.tier == tier), 0) if last else 0
        queue = min(max(held - seats, waiting), held)
        return seats, held - queue, queue

    def _tier(self, tier: ServiceTier, precedence: str, share: float, reading: Reading) -> TierStanding:
        return TierStanding(
            tier=tier,
            precedence=precedence,
            share_promised=round(share, 4),
            share_used=round(sum(reading.share((model, tier)) for model in self.models), 4),
            tokens_per_second=round(sum(reading.tokens_per_second((model, tier)) for model in self.models), 2),
            models=[self._seats(model, tier, reading) for model in self.models],
        )

    def _seats(self, model: str, tier: ServiceTier, reading: Reading) -> TierSeats:
        seats, in_use, queue = self.seats(model, tier)
        key = (model, tier)
        first = self.window.first_token(key)
        return TierSeats(
            model=model,
            seats=seats,
            seats_in_use=in_use,
            queue=queue,
            tokens_per_second=round(reading.tokens_per_second(key), 2),
            share_used=round(reading.share(key), 4),
            ttft_ms=FirstToken(_ms(first.p50), _ms(first.p95), first.samples),
        )

    def _model(self, name: str, reading: Reading) -> ModelStanding:
        status = self._status(name)
        done = reading.models.get(name, ModelSum())
        last = self.window.last(name)
        tiers = [tier for tier, _ in self.policies().each()]
        # after the last sequence is cancelled no step says so; what was not let in does not run
        held = sum(self._counts.held(name, tier) for tier in tiers)
        running = min(last.running, held) if last else 0
        waiting = min(last.waiting, held - running) if last else 0
        return ModelStanding(
            model=name,
            state=status.state,
            detail=status.detail,
            running=running,
            waiting=waiting,
            steps_per_second=round(done.steps / reading.seconds, 2) if reading.seconds > 0 else 0.0,
            step_ms=_mean(done.ms, done.steps),
            decode_rows=_mean(done.decode_rows, done.steps),
            prefill_rows=_mean(done.prefill_rows, done.steps),
            kv_used_tokens=last.kv_used if last else 0,
            kv_total_tokens=last.kv_total if last else 0,
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 2) if count else None
