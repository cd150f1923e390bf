"""Everything /metrics shows: a registry of our own, and one method per thing that happens.

Knows no wire format and decides nothing. Labels are model and service tier names from the configuration only,
never what a client sent: a client can't make the number of series grow, nor read another's data in a label.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from ..types import Chunk, StepStats

disable_created_metrics()  # type: ignore[no-untyped-call]  # a timestamp beside every series would double the page

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5, 10)
_REQUEST_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5)
_ROW_BUCKETS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """The server's metrics. One object per app, so several apps in one process never share series."""

    def __init__(self, on_ttft: Callable[[str, str, float], None] = lambda model, tier, seconds: None) -> None:
        """`on_ttft` is told each time to a first token too: model, service tier and seconds."""
        self._on_ttft = on_ttft
        self._registry = registry = CollectorRegistry()
        by_tier = ("model", "tier")

        def counter(name: str, text: str, labels: Iterable[str]) -> Counter:
            return Counter(f"twospeed_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, labels: Iterable[str], buckets: Iterable[float]) -> Histogram:
            return Histogram(f"twospeed_{name}", text, labels, registry=registry, buckets=tuple(buckets))

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"twospeed_{name}", text, ("model",), registry=registry)

        self._requests = counter(
            "requests", "Requests to /v1, by HTTP status; 499: the client left", (*by_tier, "status")
        )
        self._request_s = histogram("request_seconds", "From headers to last byte", by_tier, _REQUEST_BUCKETS)
        self._ttft = histogram("time_to_first_token_seconds", "From headers to first token", by_tier, _TTFT_BUCKETS)
        self._gap = histogram("inter_token_seconds", "Gap between tokens of one sequence", by_tier, _GAP_BUCKETS)
        self._queue_s = histogram("queue_seconds", "Wait in the engine for the first row", by_tier, _TTFT_BUCKETS)
        self._prompt = counter("prompt_tokens", "Prompt tokens, cached ones too", by_tier)
        self._cached = counter("cached_tokens", "Prompt tokens that were not prefilled again", by_tier)
        self._completion = counter("completion_tokens", "Tokens generated", by_tier)
        self._drafted = counter("draft_tokens", "Tokens proposed by drafts", by_tier)
        self._accepted = counter("accepted_draft_tokens", "Drafted tokens the model agreed with", by_tier)
        self._step_s = histogram("step_seconds", "One llama_decode call", ("model",), _STEP_BUCKETS)
        self._rows = histogram("step_rows", "Rows in a step", ("model", "kind"), _ROW_BUCKETS)
        self._running = gauge("sequences_running", "Sequences in a slot")
        self._waiting = gauge("queue_depth", "Sequences waiting for a slot")
        self._kv_used = gauge("kv_used_tokens", "Tokens in the KV cache, after the last step")
        self._kv_total = gauge("kv_total_tokens", "Tokens the KV cache can hold")
        self._admitted = gauge("sequences_admitted", "Sequences that hold a permit now, queued or running")
        self._ready = gauge("model_ready", "1: the model answers requests")
        self._tiers: dict[tuple[str, str], TierMetrics] = {}
        self._steps: dict[str, _ModelSteps] = {}
        self._last: dict[str, _LastStep] = {}

    def add(self, collector: Collector) -> None:
        """Show what `collector` collects as well."""
        self._registry.register(collector)

    def watch_model(self, model: str, *, admitted: Callable[[], float], ready: Callable[[], float]) -> None:
        """Read `admitted` (sequences) and `ready` (0 or 1) of `model` whenever somebody scrapes."""
        self._admitted.labels(model).set_function(admitted)
        self._ready.labels(model).set_function(ready)
        # The engine reports with its steps, and after the last one is cancelled there is none: what holds no
        # permit doesn't run.
        last = self._last.setdefault(model, _LastStep())
        self._running.labels(model).set_function(lambda: min(last.stats.running, admitted()) if last.stats else 0)
        self._waiting.labels(model).set_function(lambda: min(last.stats.waiting, admitted()) if last.stats else 0)
        self._kv_used.labels(model).set_function(lambda: last.stats.kv_used if last.stats else 0)
        self._kv_total.labels(model).set_function(lambda: last.stats.kv_total if last.stats else 0)

    def tier(self, model: str, tier: str) -> TierMetrics:
        """The series of one (model, service tier): looked up once per request, not once per token."""
        found = self._tiers.get((model, tier))
        if found is None:
            found = self._tiers[model, tier] = TierMetrics(
                ttft=self._ttft.labels(model, tier),
                on_ttft=partial(self._on_ttft, model, tier),
                gap=self._gap.labels(model, tier),
                queue_s=self._queue_s.labels(model, tier),
                prompt=self._prompt.labels(model, tier),
                cached=self._cached.labels(model, tier),
                completion=self._completion.labels(model, tier),
                drafted=self._drafted.labels(model, tier),
                accepted=self._accepted.labels(model, tier),
            )
        return found

    def request(self, model: str, tier: str, status: int, seconds: float) -> None:
        """One request is over. `model` and `tier` are empty where it failed before they were known."""
        self._requests.labels(model, tier, str(status)).inc()
        self._request_s.labels(model, tier).observe(seconds)

    def step(self, stats: StepStats) -> None:
        """One engine step; this is an `Engine.on_step` listener."""
        series = self._steps.get(stats.model)
        if series is None:
            series = self._steps[stats.model] = _ModelSteps(
                seconds=self._step_s.labels(stats.model),
                decode_rows=self._rows.labels(stats.model, "decode"),
                prefill_rows=self._rows.labels(stats.model, "prefill"),
                last=self._last.setdefault(stats.model, _LastStep()),
            )
        series.seconds.observe(stats.ms / 1000)
        series.decode_rows.observe(stats.decode_rows)
        series.prefill_rows.observe(stats.prefill_rows)
        series.last.stats = stats

    def render(self, accept: str) -> tuple[bytes, str]:
        """The exposition text and its content type, in the format that the `Accept` header asks for."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type


@dataclass(slots=True)
class _LastStep:
    """What gauges are read from when somebody scrapes, so that a step costs them nothing."""

    stats: StepStats | None = None


@dataclass(frozen=True, slots=True)
class _ModelSteps:
    seconds: Histogram
    decode_rows: Histogram
    prefill_rows: Histogram
    last: _LastStep


@dataclass(frozen=True, slots=True)
class TierMetrics:
    """The series that requests of one (model, service tier) feed."""

    ttft: Histogram
    on_ttft: Callable[[float], None]
    gap: Histogram
    queue_s: Histogram
    prompt: Counter
    cached: Counter
    completion: Counter
    drafted: Counter
    accepted: Counter

    def watch(self, started: float) -> TokenClock:
        """A clock for one request that came in at `started` (`time.perf_counter()` seconds)."""
        return TokenClock(self, started)


class TokenClock:
    """Times the chunks of one request."""

    __slots__ = ("_last", "_prompts", "_series", "_started")

    def __init__(self, series: TierMetrics, started: float) -> None:
        self._series = series
        self._started = started
        self._last: dict[int, float] = {}  # by sequence: when its last chunk came
        self._prompts: set[int] = set()

    def chunk(self, chunk: Chunk, prompt: int) -> None:
        """`chunk` came, of a sequence of the request's `prompt`-th prompt."""
        series = self._series
        now = time.perf_counter()
        if chunk.tokens:
            last = self._last.get(chunk.index)
            if last is not None:
                series.gap.observe((now - last) / chunk.tokens)
            elif not self._last:
                series.ttft.observe(now - self._started)
                series.on_ttft(now - self._started)
            self._last[chunk.index] = now
        if chunk.usage is not None:
            series.completion.inc(chunk.usage.completion_tokens)
            if prompt not in self._prompts:  # n sequences share one prompt; it is counted once
                self._prompts.add(prompt)
                series.prompt.inc(chunk.usage.prompt_tokens)
                series.cached.inc(chunk.usage.cached_tokens)
        if chunk.timings is not None:
            series.queue_s.observe(chunk.timings.queue_ms / 1000)
            series.drafted.inc(chunk.timings.draft_n)
            series.accepted.inc(chunk.timings.draft_n_accepted)
