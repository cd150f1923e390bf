"""What the engine did lately, per model and service tier: a sliding window over steps and first tokens.

Pure but for its clock, which is given. A step costs as much as it has tiers: it is added to a bucket of half a
second, and buckets are dropped as a whole.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ..types import StepStats

STEPS_S = 10.0
"""Steps that ended in the last so many seconds count, rounded up to a bucket."""
BUCKET_S = 0.5
TTFT_S = 300.0
TTFT_SAMPLES = 200
"""Of times to the first token the last so many count, none older than TTFT_S."""

Key = tuple[str, str]
"""A model and a service tier."""


@dataclass(slots=True)
class ModelSum:
    """What one model did: steps, their milliseconds and rows."""

    steps: int = 0
    ms: float = 0.0
    decode_rows: int = 0
    prefill_rows: int = 0

    def add(self, other: ModelSum) -> None:
        self.steps += other.steps
        self.ms += other.ms
        self.decode_rows += other.decode_rows
        self.prefill_rows += other.prefill_rows


@dataclass(slots=True)
class TierSum:
    """What one tier of a model had: device milliseconds and tokens, since `begun` on the clock."""

    begun: float
    ms: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `samples` times in seconds; None where there are none."""

    p50: float | None = None
    p95: float | None = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What was done in the last `seconds`. A model or tier that did nothing is not in it."""

    at: float
    seconds: float
    models: dict[str, ModelSum]
    tiers: dict[Key, TierSum]

    @property
    def device_ms(self) -> float:
        """Milliseconds that the device computed, for all models."""
        return sum(model.ms for model in self.models.values())

    def tokens_per_second(self, key: Key) -> float:
        """Since the tier's first step in this window: a stream that has just begun shows its speed at once."""
        tier = self.tiers.get(key)
        return tier.tokens / (self.at - tier.begun) if tier and self.at > tier.begun else 0.0

    def share(self, key: Key) -> float:
        """The tier's part of what the device computed."""
        tier, total = self.tiers.get(key), self.device_ms
        return tier.ms / total if tier and total else 0.0


@dataclass(slots=True)
class _Bucket:
    number: int
    models: dict[str, ModelSum] = field(default_factory=dict)
    tiers: dict[Key, TierSum] = field(default_factory=dict)


class Window:
    """Fed by an engine's `on_step` and by whoever sees first tokens. Used from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._buckets: deque[_Bucket] = deque()
        self._ttft: dict[Key, deque[tuple[float, float]]] = {}
        self._device_ms: dict[Key, float] = {}
        self._last: dict[str, StepStats] = {}

    def step(self, stats: StepStats) -> None:
        """One engine step, which has just ended."""
        now = self._clock()
        bucket = self._bucket(now)
        model = bucket.models.setdefault(stats.model, ModelSum())
        model.add(ModelSum(1, stats.ms, stats.decode_rows, stats.prefill_rows))
        self._last[stats.model] = stats
        for tier in stats.tiers:
            key = (stats.model, tier.tier)
            found = bucket.tiers.get(key)
            if found is None:
                found = bucket.tiers[key] = TierSum(begun=now - stats.ms / 1000)
            found.ms += tier.ms
            found.tokens += tier.tokens
            self._device_ms[key] = self._device_ms.get(key, 0.0) + tier.ms

    def ttft(self, model: str, tier: str, seconds: float) -> None:
        """A request of this tier had its first token `seconds` after it came."""
        samples = self._ttft.get((model, tier))
        if samples is None:
            samples = self._ttft[model, tier] = deque(maxlen=TTFT_SAMPLES)
        samples.append((self._clock(), seconds))

    def read(self) -> Reading:
        """What was done lately."""
        now = self._clock()
        self._drop(self._number(now))
        models: dict[str, ModelSum] = {}
        tiers: dict[Key, TierSum] = {}
        for bucket in self._buckets:
            for name, done in bucket.models.items():
                models.setdefault(name, ModelSum()).add(done)
            for key, had in bucket.tiers.items():
                tier = tiers.setdefault(key, TierSum(begun=had.begun))
                tier.ms += had.ms
                tier.tokens += had.tokens
        start = max((self._number(now) - _KEPT) * BUCKET_S, self._since)
        return Reading(at=now, seconds=now - start, models=models, tiers=tiers)

    def first_token(self, key: Key) -> Percentiles:
        """The times to the first token of a model's tier."""
        oldest = self._clock() - TTFT_S
        return percentiles([seconds for at, seconds in self._ttft.get(key, ()) if at >= oldest])

    def last(self, model: str) -> StepStats | None:
        """The last step of `model`, however long ago."""
        return self._last.get(model)

    def device_ms(self, key: Key) -> float:
        """Device milliseconds that a model's tier has had since the start."""
        return self._device_ms.get(key, 0.0)

    def _bucket(self, now: float) -> _Bucket:
        number = self._number(now)
        if not self._buckets or self._buckets[-1].number != number:
            self._drop(number)
            self._buckets.append(_Bucket(number))
        return self._buckets[-1]

    def _drop(self, number: int) -> None:
        while self._buckets and self._buckets[0].number < number - _KEPT:
            self._buckets.popleft()

    def _number(self, now: float) -> int:
        return int(now // BUCKET_S)


_KEPT = round(STEPS_S / BUCKET_S)


def percentiles(samples: list[float]) -> Percentiles:
    """By nearest rank, so each is a time that was really measured."""
    if not samples:
        return Percentiles()
    ordered = sorted(samples)
    p50, p95 = (ordered[max(-(-len(ordered) * percent // 100), 1) - 1] for percent in (50, 95))
    return Percentiles(p50=p50, p95=p95, samples=len(ordered))
