"""The arithmetic of the benchmark: pure functions of arrival times and counts.

Times are seconds of one clock. `tokens` may exceed the number of events, as some tokens bring no text of their
own: events are then counted as so much more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise


def percentile(values: Sequence[float], percent: float) -> float:
    """With linear interpolation; `values` must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    share = place - low
    return ordered[low] * (1 - share) + ordered[high] * share


def median(values: Sequence[float]) -> float:
    return percentile(values, 50)


def decode_rate(times: Sequence[float], tokens: int) -> float | None:
    """Tokens a second from the first token to the last; None where there is no time between them."""
    if len(times) < 2 or times[-1] <= times[0]:
        return None
    return (tokens - 1) / (times[-1] - times[0])


def common_window(streams: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """From the last stream's first token to the first stream's end; None where they are never all at work."""
    start, end = max(times[0] for times in streams), min(times[-1] for times in streams)
    return (start, end) if end > start else None


def events_within(times: Sequence[float], start: float, end: float) -> int:
    """Events after `start`, `end` included: as many as there are gaps in between."""
    return sum(start < at <= end for at in times)


def aggregate_rate(streams: Sequence[tuple[Sequence[float], int]], start: float, end: float) -> float:
    """Tokens a second of all streams, (times, tokens) each, between two moments."""
    total = sum(events_within(times, start, end) * max(1.0, tokens / len(times)) for times, tokens in streams)
    return total / (end - start)


def gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def gaps_touching(times: Sequence[float], start: float, end: float) -> list[float]:
    """The gaps of which some part lies between two moments."""
    pairs = pairwise(times)
    return [after - before for before, after in pairs if after > start and before < end]


def neighbour_ratio(values: Sequence[float], around: Sequence[float]) -> float:
    """Median of each value against the mean of the two baselines next to it in time.

    `around` has one more: it was measured before, between and after, so that a drifting machine hits both alike.
    """
    if len(around) != len(values) + 1:
        raise ValueError(f"{len(values)} values need {len(values) + 1} baselines, not {len(around)}")
    return median([2 * value / (around[i] + around[i + 1]) for i, value in enumerate(values)])
