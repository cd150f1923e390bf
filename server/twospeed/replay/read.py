"""Reads a trace file once, for all that is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..engine import trace
from ..engine.trace import TraceError
from .exact import Exact
from .record import Gatherer, Life
from .report import Collector, Report
from .whatif import Policy, simulate

# What comes of events that contradict each other, in whatever way.
_NONSENSE = (LookupError, ValueError, TypeError, ArithmeticError, AssertionError, RuntimeError)
_HEAD = 4096


class Outcome(NamedTuple):
    """`difference`: the first plan that was not the recorded one; None: all are the same."""

    difference: str | None
    recorded: Report
    lives: list[Life]


def read(path: Path) -> Outcome:
    """Raises OSError, TraceError."""
    with path.open("rb") as file:
        trace.check_first(file.read(_HEAD).partition(b"\n")[0])  # not a whole line, which may be a whole file
        file.seek(0)
        return read_lines(file)


def read_lines(lines: Iterable[bytes]) -> Outcome:
    """Raises TraceError."""
    exact, collector, gatherer = Exact(), Collector(), Gatherer()
    for line, event in trace.decode(lines):
        try:
            exact.feed(line, event)
            collector.feed(event)
            gatherer.feed(event)
        except _NONSENSE as error:
            raise TraceError(f"line {line} makes no sense ({type(error).__name__}: {error})") from error
    return Outcome(exact.difference, collector.report(), gatherer.lives)


def what_if(lives: Iterable[Life], policy: Policy) -> Report:
    """What the same requests would have got under `policy`. Raises TraceError for what no engine can have recorded."""
    collector = Collector()
    try:
        for life in lives:
            collector.feed(trace.Header(trace.FORMAT, ""))
            simulate(life, policy, collector.feed)
    except _NONSENSE as error:
        raise TraceError(f"it cannot be simulated ({type(error).__name__}: {error})") from error
    return collector.report()
