"""What was measured, as the JSON report holds it: every sample, and the figures made of them."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..results import Line, Machine

Tier = Literal["default", "ultrafast"]
TIERS: tuple[Tier, Tier] = ("default", "ultrafast")
Relation = Literal["", ">=", "<="]


class Figure(msgspec.Struct, frozen=True):
    """A number, or how large it is at least or at most, as something took longer than anyone waited."""

    value: float
    bound: Relation = ""


class Span(msgspec.Struct, frozen=True):
    """The background around one measured request: tokens a second before it came and while it ran, how many of
    its streams were decoding then on average, and its part of all tokens of that time."""

    before: float
    during: float
    streams: float
    share: float


class Sample(msgspec.Struct):
    """One measured request. `at_ms`: when its events came, from when it was sent. No events: nothing came within
    `waited_ms`. `told`: the counts are the server's own. `whole`: it came to its end and was not cut."""

    workload: str
    load: int
    tier: Tier
    round: int
    item: int
    waited_ms: float
    at_ms: list[float] = []
    text: str = ""
    same_prompt: bool = True  # as the other tier's sample of this round and item
    whole: bool = False
    told: bool = False
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    accepted_prediction: int | None = None
    rejected_prediction: int | None = None
    served: str | None = None
    timings: dict[str, float] = {}
    background: Span | None = None
    error: str | None = None


class Cell(msgspec.Struct, frozen=True):
    """The figures of one workload, load and tier. None: not measured, or not told by the server.

    `silent`: samples without a token, each waited for `waited_ms` at least; `cut`: with some, but cut; `estimated`:
    some token counts are from the text's length.
    `rate`: tokens a second from the first token to the last; `whole_rate`: from when it was sent.
    """

    workload: str
    load: int
    tier: Tier
    samples: int
    failed: int
    silent: int
    waited_ms: float | None
    cut: int
    estimated: bool
    served: dict[str, int]
    ttft_p50_ms: Figure | None
    ttft_p95_ms: Figure | None
    rate: float | None
    whole_rate: Figure | None
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_ms: float | None
    tokens: int
    cached_tokens: int | None
    drafted_per_step: float | None
    accepted_per_step: float | None
    background: Span | None


class Difference(msgspec.Struct, frozen=True):
    """Texts of both tiers for one prompt. `at`: the first character that differs, None where none does; `of`: how
    many were compared."""

    round: int
    item: int
    at: int | None
    of: int


class Comparison(msgspec.Struct, frozen=True):
    """One workload under one load: ultrafast against default, and against itself alone."""

    workload: str
    load: int
    speed: Figure | None  # ultrafast / default, output
    ttft: Figure | None  # default / ultrafast, p95
    kept: Figure | None  # ultrafast's output speed / alone
    ttft_of_alone: Figure | None  # ultrafast's p95 / alone
    texts: list[Difference]
    uncompared: str = ""  # why there are no texts


class Conserved(msgspec.Struct, frozen=True):
    """Default streams with nobody else, in tokens a second: while all of them decode (None: they never all do), and
    from the first request to the last token."""

    streams: int
    together: float | None
    whole: float


class Gaps(msgspec.Struct, frozen=True):
    """An ultrafast stream while long default prompts come. Milliseconds between its events. `covered`: it ran on until
    all of them were answered or the time was up."""

    prompts: int
    prompt_tokens: int | None
    alone_ms: list[float]
    beside_ms: list[float]
    answered: int  # of the prompts, while it was watched
    seconds: float
    covered: bool
    served: str | None


class Extra(msgspec.Struct, frozen=True):
    """One more ultrafast request beside those that run: how it was answered, and how soon."""

    number: int
    served: str | None
    status: int
    headers_ms: float
    ttft_ms: float | None


class Seats(msgspec.Struct, frozen=True):
    """Two ultrafast streams at once against one alone (before, after), in tokens a second; and then more of them."""

    alone: list[float]
    together: list[float]
    served: list[str | None]
    extras: list[Extra]


class TiersReport(msgspec.Struct):
    """All of a run. `notes`: what a reader must know of how it was measured."""

    machine: Machine
    versions: dict[str, str]
    started: str
    model: str
    url: str | None = None
    description: str = ""
    first_token_s: float = 0.0  # how long a first token was waited for
    seconds: float = 0.0
    load_at_end: float = 0.0
    samples: list[Sample] = []
    cells: list[Cell] = []
    comparisons: list[Comparison] = []
    plain: dict[str, list[float]] = {}  # the bare loop with a workload's prompt, tokens a second
    step_ms: dict[int, float] = {}  # a step of the background, by load: the usual gap of its streams
    conserved: Conserved | None = None
    gaps: list[Gaps] = []
    seats: Seats | None = None
    lines: list[Line] = []
    notes: list[str] = []
    errors: list[str] = []
    interrupted: bool = False
