"""What was measured: raw samples, as the JSON report holds them. Milliseconds and tokens a second."""

from __future__ import annotations

from typing import Literal

import msgspec

from .client import Result


class StreamSample(msgspec.Struct, frozen=True):
    """One stream; `at_ms`: when each token's event came, counted from when the request was sent."""

    ttft_ms: float
    prompt_tokens: int
    cached_tokens: int
    tokens: int
    at_ms: list[float]
    timings: dict[str, float]

    @classmethod
    def of(cls, result: Result) -> StreamSample:
        return cls(
            ttft_ms=round(result.ttft_ms, 2),
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            tokens=result.tokens,
            at_ms=[round((at - result.sent) * 1000, 2) for at in result.times],
            timings=result.timings,
        )


class OneStream(msgspec.Struct, frozen=True):
    """The bare loop and one stream through HTTP, in turns: raw, HTTP, raw, ..., raw."""

    raw: list[float]  # empty where there is no file to run
    http: list[float]
    streams: list[StreamSample]


class ManyStreams(msgspec.Struct, frozen=True):
    """`together`: tokens a second while all of them decode; None: they never all did. `whole`: first byte to last."""

    count: int
    together: float | None
    together_s: float
    whole: float
    streams: list[StreamSample]


class Prefill(msgspec.Struct, frozen=True):
    ttft_ms: list[float]
    rate: list[float]
    streams: list[StreamSample]


class Turn(msgspec.Struct, frozen=True):
    """A turn of the conversation. `new`: the prompt's tokens that no earlier turn sent or generated."""

    prompt: int
    cached: int
    prefilled: int
    new: int
    completion: int
    ttft_ms: float


class Arrival(msgspec.Struct, frozen=True):
    """A long prompt that comes while another stream decodes. Rates are of prefill, gaps of the stream."""

    prompt_tokens: int
    rate_alone: float
    rate_beside: float
    ttft_ms: float
    gaps_alone_ms: list[float]
    gaps_beside_ms: list[float]
    covered: bool  # the stream went on until the prompt was done


class Pair(msgspec.Struct, frozen=True):
    """Two models, each alone (before and after) and at the same time: tokens a second."""

    alone: dict[str, list[float]]
    together: dict[str, float]
    seconds: float


class Ask(msgspec.Struct, frozen=True):
    """Something asked of a figure. `met` is None where it could not be measured. `bound`: the true value is at least
    or at most `value`, as something took longer than anyone waited."""

    name: str
    value: float | None
    relation: Literal[">=", "<="]
    limit: float
    met: bool | None
    bound: Literal["", ">=", "<="] = ""


class Line(msgspec.Struct, frozen=True):
    """One line of the report."""

    title: str
    text: str
    asks: list[Ask] = []


class ModelReport(msgspec.Struct):
    description: str = ""
    lines: list[Line] = []
    one: OneStream | None = None
    many: list[ManyStreams] = []
    prefill: Prefill | None = None
    turns: list[Turn] = []
    arrival: Arrival | None = None


class Machine(msgspec.Struct, frozen=True):
    """Where it was measured. `load`: busy threads in the minute before the start, other programs' included."""

    cpu: str
    features: list[str]
    cores: int
    cpus: int
    system: str
    arch: str
    memory_total: int
    memory_available: int
    load: float


class Report(msgspec.Struct):
    """All of a run. `errors`: what failed to run."""

    machine: Machine
    versions: dict[str, str]
    started: str
    url: str | None = None
    seconds: float = 0.0
    load_at_end: float = 0.0
    models: dict[str, ModelReport] = {}
    pair: Pair | None = None
    pair_lines: list[Line] = []
    errors: list[str] = []
