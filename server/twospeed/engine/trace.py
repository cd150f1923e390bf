"""The recorded trace: what the scheduler's decisions depend on, and the decisions, one JSON line an event.

It holds no text, token id or key: tokens and namespaces are pseudonyms (recorder.py), and only tell what is equal to
what. A file holds one or more lives of an engine process, each from a Header on; sequences are numbered within a life.
Times are seconds of the engine's clock, which says nothing of the time of day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ..types import ServiceTier, Share, Speculation
from .cost import Curves

FORMAT = 1


class TraceError(Exception):
    """This cannot be read as a trace; str() is one line for a person."""


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="event"):
    """An engine process began to record. `trace` is the format's version."""

    trace: int
    twospeed: str


class ModelAdded(msgspec.Struct, frozen=True, tag="model", tag_field="event", omit_defaults=True):
    """A model can be used: what its steps cost as first measured, its cache of `capacity` tokens for `seqs` sequences,
    and its limits."""

    model: str
    at: float
    curves: Curves
    capacity: int
    seqs: int
    slots: int
    max_rows: int
    max_step_ms: float | None
    max_prefill_step_ms: float
    spill_tokens: int = 0
    partial_prefix: bool = True


class Shared(msgspec.Struct, frozen=True, tag="shares", tag_field="event"):
    """How tiers share the device from now on."""

    at: float
    shares: dict[ServiceTier, Share]


class Added(msgspec.Struct, frozen=True, tag="add", tag_field="event", omit_defaults=True):
    """A sequence was queued. `leader`: the sibling whose prefill it waits for; `prompt=None`: prompt and prediction are
    those of the leader."""

    sequence: int
    model: str
    tier: ServiceTier
    at: float
    max_new: int
    namespace: int
    prompt: list[int] | None = None
    prediction: list[int] = []
    leader: int | None = None
    speculation: Speculation | None = None


class Released(msgspec.Struct, frozen=True, tag="release", tag_field="event", omit_defaults=True):
    """A sequence is over: it came to its end, or was `cancelled`. `keep`: its prefix may stay."""

    sequence: int
    at: float
    keep: bool = True
    cancelled: bool = False


class Idle(msgspec.Struct, frozen=True, tag="idle", tag_field="event"):
    """A plan found nothing to do."""

    at: float


class Restored(msgspec.Struct, frozen=True, tag="restore", tag_field="event"):
    """A plan put a preempted sequence back from RAM."""

    sequence: int
    at: float


class RestoreFailed(msgspec.Struct, frozen=True, tag="restore_failed", tag_field="event"):
    """What was saved of it did not go back."""

    sequence: int
    at: float


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A sequence's part of a step: rows of its own tokens, then `draft`. `written`: what came of it; None where nothing
    was sampled. `predicted`: the draft is from the client's prediction."""

    sequence: int
    rows: int
    draft: list[int]
    predicted: bool
    written: list[int] | None


class Stepped(msgspec.Struct, frozen=True, tag="step", tag_field="event", omit_defaults=True):
    """A step was run, and done `at`. `load`: rows, rows with logits, and positions summed, as cost.py takes them.
    `charged`: each tier's part of `ms`; `preempted`: who had to make way when it was planned."""

    model: str
    tier: ServiceTier
    at: float
    ms: float
    predicted_ms: float
    load: tuple[int, int, int]
    decode_rows: int
    draft_rows: int
    charged: dict[ServiceTier, float]
    parts: list[Part]
    preempted: list[int] = []


Told = ModelAdded | Shared | Added | Released | Idle | Restored | RestoreFailed | Stepped
"""What a scheduler is asked and decides."""
Event = Header | Told

_decode = msgspec.json.Decoder(Event).decode
_encoder = msgspec.json.Encoder()


class _AnyHeader(msgspec.Struct):
    """Of a trace of any version."""

    event: str
    trace: int


def encode(event: Event) -> bytes:
    """A line."""
    return _encoder.encode(event) + b"\n"


def decode(lines: Iterable[bytes]) -> Iterator[tuple[int, Event]]:
    """Each event with the number of its line. A line that a process left unfinished when it was killed is passed
    over. Raises TraceError."""
    torn: TraceError | None = None
    number = 0
    for number, line in enumerate(lines, 1):
        if number == 1:
            check_first(line)
        if not line.strip():
            continue
        try:
            event: Event = _decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            if torn is not None:
                raise torn from None
            torn = TraceError(f"line {number} is not an event of a trace: {error}")
            continue
        if isinstance(event, Header):
            if event.trace != FORMAT:
                raise TraceError(f"line {number}: a trace of format {event.trace}; this twospeed reads {FORMAT}")
        elif torn is not None:
            raise torn
        torn = None
        yield number, event
    if number == 0:
        raise TraceError("it is empty")
    if torn is not None and line.endswith(b"\n"):
        raise torn


def check_first(line: bytes) -> None:
    """Whether `line` begins a trace that this version reads. Raises TraceError."""
    try:
        header: Any = msgspec.json.decode(line, type=_AnyHeader)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        header = None
    if header is None or header.event != "header":
        raise TraceError("it is not a trace of `twospeed serve --trace`")
    if header.trace != FORMAT:
        raise TraceError(f"it is a trace of format {header.trace}; this twospeed reads {FORMAT}")
