"""What a trace's requests got: figures for each service tier of each model. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec

from ..bench.stats import percentile
from ..engine import trace
from ..types import TIERS, ServiceTier


class Spread(msgspec.Struct, frozen=True):
    p50: float
    p95: float


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One service tier of one model, in sequences. None: there was nothing to measure.

    `wait_ms`: from arrival to the first row. `tokens_per_second`: of each sequence, from its first token to its last.
    `longest_gap_ms`: between two tokens of a sequence. `steps`: those that it had rows in. `device_share`: of all time
    in steps.
    """

    tier: ServiceTier
    model: str
    sequences: int
    cancelled: int
    tokens: int
    wait_ms: Spread | None
    ttft_ms: Spread | None
    tokens_per_second: Spread | None
    longest_gap_ms: float | None
    device_ms: float
    device_share: float
    steps: int
    rows_per_step: float
    drafted: int
    drafts_accepted: int
    preemptions: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`lives`: engine processes. `span_s`: from each one's first to last event, together."""

    lives: int
    span_s: float
    steps: int
    device_ms: float
    measured_over_predicted: float | None
    tiers: list[Line]


@dataclass(slots=True)
class _Live:
    """A sequence so far."""

    added: trace.Added
    first_row: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class _Sums:
    counts: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    gap: float | None = None
    ms: float = 0.0


class Collector:
    """Feed it the events of a trace, then ask for the report."""

    def __init__(self) -> None:
        self._sums: dict[tuple[ServiceTier, str], _Sums] = {}
        self._live: dict[int, _Live] = {}
        self._lives = self._steps = 0
        self._ms = self._predicted = self._span = 0.0
        self._begun: float | None = None
        self._now = 0.0

    def feed(self, event: trace.Event) -> None:
        if isinstance(event, trace.Header):
            self._end_life()
            self._lives += 1
            return
        self._begun = event.at if self._begun is None else self._begun
        self._now = max(event.at, self._now)
        match event:
            case trace.Added():
                self._live[event.sequence] = _Live(event)
                self._of(event).counts["sequences"] += 1
            case trace.Released(number, _, _, cancelled):
                live = self._live.pop(number)
                self._of(live.added).counts["cancelled"] += cancelled
                self._over(live)
            case trace.Stepped():
                self._step(event)

    def report(self) -> Report:
        self._end_life()
        order = sorted(self._sums, key=lambda key: (TIERS.index(key[0]), key[1]))
        return Report(
            lives=self._lives,
            span_s=self._span,
            steps=self._steps,
            device_ms=self._ms,
            measured_over_predicted=self._ms / self._predicted if self._predicted else None,
            tiers=[self._line(*key) for key in order],
        )

    def _step(self, event: trace.Stepped) -> None:
        self._steps += 1
        self._ms += event.ms
        self._predicted += event.predicted_ms
        for tier, fraction in event.charged.items():
            self._at(tier, event.model).ms += event.ms * fraction
        for number in event.preempted:
            if number in self._live:
                self._of(self._live[number].added).counts["preemptions"] += 1
        tiers = set[ServiceTier]()
        for part in event.parts:
            live = self._live[part.sequence]
            sums = self._of(live.added)
            sums.counts.update(rows=part.rows + len(part.draft), drafted=len(part.draft))
            tiers.add(live.added.tier)
            if live.first_row is None:
                live.first_row = event.at - event.ms / 1000
                sums.waits.append((live.first_row - live.added.at) * 1000)
            if part.written is not None:
                self._wrote(live, sums, len(part.written), event.at)
        for tier in tiers:
            self._at(tier, event.model).counts["steps"] += 1

    def _wrote(self, live: _Live, sums: _Sums, tokens: int, now: float) -> None:
        sums.counts.update(tokens=tokens, accepted=tokens - 1)
        if live.first_token is None:
            live.first_token = now
            sums.firsts.append((now - live.added.at) * 1000)
        else:
            sums.gap = max(sums.gap or 0.0, (now - live.last_token) * 1000)
        live.last_token = now
        live.tokens += tokens

    def _over(self, live: _Live) -> None:
        if live.first_token is not None and live.last_token > live.first_token:
            rate = (live.tokens - 1) / (live.last_token - live.first_token)
            self._of(live.added).rates.append(rate)

    def _end_life(self) -> None:
        for live in self._live.values():
            self._over(live)
        self._live = {}
        self._span += self._now - (self._now if self._begun is None else self._begun)
        self._begun, self._now = None, 0.0

    def _of(self, added: trace.Added) -> _Sums:
        return self._at(added.tier, added.model)

    def _at(self, tier: ServiceTier, model: str) -> _Sums:
        return self._sums.setdefault((tier, model), _Sums())

    def _line(self, tier: ServiceTier, model: str) -> Line:
        sums = self._sums[tier, model]
        counts = sums.counts
        return Line(
            tier=tier,
            model=model,
            sequences=counts["sequences"],
            cancelled=counts["cancelled"],
            tokens=counts["tokens"],
            wait_ms=_spread(sums.waits),
            ttft_ms=_spread(sums.firsts),
            tokens_per_second=_spread(sums.rates),
            longest_gap_ms=sums.gap,
            device_ms=sums.ms,
            device_share=sums.ms / self._ms if self._ms else 0.0,
            steps=counts["steps"],
            rows_per_step=counts["rows"] / counts["steps"] if counts["steps"] else 0.0,
            drafted=counts["drafted"],
            drafts_accepted=counts["accepted"],
            preemptions=counts["preemptions"],
        )


def _spread(values: list[float]) -> Spread | None:
    return Spread(percentile(values, 50), percentile(values, 95)) if values else None
