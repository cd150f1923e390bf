"""From samples to figures and ratios. Pure; knows no verdicts.

A sample without a token counts with the time it was waited for, as a lower limit, and figures made of such limits
say so: nothing is dropped because it was too slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .. import stats
from .results import Cell, Comparison, Difference, Figure, Relation, Sample, Span, Tier


def percentile(values: Sequence[tuple[float, bool]], percent: float) -> Figure | None:
    """Of (value, whether it is only a lower limit). A limit below or at the place asked for makes the result one."""
    if not values:
        return None
    ordered = sorted(values)
    high = -int(-(len(ordered) - 1) * percent // 100)
    limited = any(lower for _, lower in ordered[: high + 1])
    return Figure(stats.percentile([value for value, _ in ordered], percent), ">=" if limited else "")


def ratio(above: Figure | None, below: Figure | None) -> Figure | None:
    """None where one is missing, zero, or both are limits that say nothing together."""
    if above is None or below is None or not below.value:
        return None
    turned: Relation = {"": "", ">=": "<=", "<=": ">="}[below.bound]  # type: ignore[assignment]
    bounds = {bound for bound in (above.bound, turned) if bound}
    if len(bounds) > 1:
        return None
    bound: Relation = bounds.pop() if bounds else ""
    return Figure(above.value / below.value, bound)


def first_difference(one: str, other: str, *, whole: bool = True) -> tuple[int | None, int]:
    """Where two texts part (None: nowhere), and of how many characters. `whole`: both came to their end, so that one
    that is only the other's beginning differs from it."""
    shorter, longer = sorted((len(one), len(other)))
    at = next((i for i in range(shorter) if one[i] != other[i]), None)
    if at is None and whole and shorter != longer:
        at = shorter
    return at, longer if whole else shorter


def chars_per_token(samples: Sequence[Sample]) -> float:
    """Of the samples whose counts are told; 4 where there are none."""
    told = [s for s in samples if s.told and s.text]
    tokens = sum(s.tokens for s in told)
    return sum(len(s.text) for s in told) / tokens if tokens else 4.0


def tokens_of(sample: Sample, chars: float) -> int:
    """Told, or estimated: a stream that was cut tells no count, and an event may carry several tokens."""
    if sample.told:
        return sample.tokens
    return max(len(sample.at_ms), round(len(sample.text) / chars))


def rate_of(sample: Sample, chars: float) -> float | None:
    return stats.decode_rate([at / 1000 for at in sample.at_ms], tokens_of(sample, chars))


def cell(workload: str, load: int, tier: Tier, samples: Sequence[Sample], chars: float) -> Cell:
    good = [s for s in samples if s.error is None]
    heard = [s for s in good if s.at_ms]
    silent = [s for s in good if not s.at_ms]
    waits = [(s.at_ms[0], False) for s in heard] + [(s.waited_ms, True) for s in silent]
    rates = [rate for s in heard if (rate := rate_of(s, chars)) is not None]
    gaps = [after - before for s in heard for before, after in pairwise(s.at_ms)]
    steps = [s for s in heard if "draft_n" in s.timings and s.timings.get("predicted_n", 0) > 1]
    count = sum(s.timings["predicted_n"] - 1 - s.timings.get("draft_n_accepted", 0) for s in steps)
    cached = [s.cached_tokens for s in heard if s.cached_tokens is not None]
    served: dict[str, int] = {}
    for s in heard:
        name = s.served or "not told"
        served[name] = served.get(name, 0) + 1
    return Cell(
        workload=workload,
        load=load,
        tier=tier,
        samples=len(samples),
        failed=len(samples) - len(good),
        silent=len(silent),
        waited_ms=min((s.waited_ms for s in silent), default=None),
        cut=sum(not s.whole for s in heard),
        estimated=any(not s.told for s in heard),
        served=served,
        ttft_p50_ms=percentile(waits, 50),
        ttft_p95_ms=percentile(waits, 95),
        rate=stats.median(rates) if rates else None,
        whole_rate=_whole_rate(heard, silent, chars),
        gap_p50_ms=stats.percentile(gaps, 50) if gaps else None,
        gap_p99_ms=stats.percentile(gaps, 99) if gaps else None,
        gap_max_ms=max(gaps, default=None),
        tokens=sum(tokens_of(s, chars) for s in heard),
        cached_tokens=sum(cached) if cached else None,
        drafted_per_step=sum(s.timings["draft_n"] for s in steps) / count if count > 0 else None,
        accepted_per_step=sum(s.timings.get("draft_n_accepted", 0) for s in steps) / count if count > 0 else None,
        background=_background(good),
    )


def _whole_rate(heard: Sequence[Sample], silent: Sequence[Sample], chars: float) -> Figure | None:
    """Tokens a second from when it was sent. Those that got none got less than one in their time."""
    if heard:
        return Figure(stats.median([1000 * tokens_of(s, chars) / s.at_ms[-1] for s in heard if s.at_ms[-1] > 0]))
    if silent:
        return Figure(max(1000 / s.waited_ms for s in silent), "<=")
    return None


def _background(samples: Sequence[Sample]) -> Span | None:
    spans = [s.background for s in samples if s.background]
    if not spans:
        return None
    return Span(
        before=stats.median([s.before for s in spans]),
        during=stats.median([s.during for s in spans]),
        streams=stats.median([s.streams for s in spans]),
        share=stats.median([s.share for s in spans]),
    )


def compare(default: Cell, ultrafast: Cell, alone: Cell | None, samples: Sequence[Sample]) -> Comparison:
    """`samples`: of both cells. The speed is of the decode phase; where default never got a token it is of all the
    time since it asked, and a limit."""
    if default.rate is None and default.silent and not default.cut:
        speed = ratio(ultrafast.whole_rate, default.whole_rate)
    else:
        speed = ratio(_speed(ultrafast), _speed(default))
    texts, why = differences(samples)
    return Comparison(
        workload=ultrafast.workload,
        load=ultrafast.load,
        speed=speed,
        ttft=ratio(default.ttft_p95_ms, ultrafast.ttft_p95_ms),
        kept=ratio(_speed(ultrafast), _speed(alone)) if alone else None,
        ttft_of_alone=ratio(ultrafast.ttft_p95_ms, alone.ttft_p95_ms if alone else None),
        texts=texts,
        uncompared=why,
    )


def _speed(seen: Cell) -> Figure | None:
    """Those that got nothing have no speed to count, but are no faster than the others."""
    return None if seen.rate is None else Figure(seen.rate, "<=" if seen.silent else "")


def differences(samples: Sequence[Sample]) -> tuple[list[Difference], str]:
    """Of each prompt that both tiers answered; and why there are none, if so."""
    pairs: dict[tuple[int, int], dict[Tier, Sample]] = {}
    for s in samples:
        if s.text and s.error is None:
            pairs.setdefault((s.round, s.item), {})[s.tier] = s
    both = [(key, pair["default"], pair["ultrafast"]) for key, pair in sorted(pairs.items()) if len(pair) == 2]
    if not both:
        return [], "no prompt was answered by both"
    same = [(key, one, other) for key, one, other in both if one.same_prompt and other.same_prompt]
    if not same:
        return [], "the prompts differ, so that no cache helps the second"
    found = []
    for (number, item), one, other in same:
        at, of = first_difference(one.text, other.text, whole=one.whole and other.whole)
        found.append(Difference(number, item, at, of))
    return found, ""
