"""From samples to the lines a person reads, each with what is asked of it and whether it is met. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from . import stats
from .results import Arrival, Ask, Line, Machine, ManyStreams, OneStream, Pair, Prefill, Report, Turn

OF_RAW = 0.95
SIXTEEN_OF_ONE = 2.0
EXTRA_PREFILL = 2
GAP_FACTOR = 7.0
PREFILL_BESIDE = 0.4
SHARES, SHARE = 0.9, 0.45

_WIDTH = 34
_BUSY = 0.5  # of all hardware threads


def ask(name: str, value: float | None, relation: Literal[">=", "<="], limit: float) -> Ask:
    met = None if value is None else value >= limit if relation == ">=" else value <= limit
    return Ask(name, value, relation, limit, met)


def of_one(one: OneStream, tokens: int, why_no_raw: str) -> list[Line]:
    http = Line(f"one stream over HTTP, {tokens} tokens", _rates(one.http))
    if not one.raw:
        return [Line("raw decode", f"not measured: {why_no_raw}"), http]
    ratio = stats.neighbour_ratio(one.http, one.raw)
    return [
        Line(f"raw decode, {tokens} tokens", _rates(one.raw)),
        Line(http.title, http.text, [ask("of raw", ratio, ">=", OF_RAW)]),
    ]


def of_many(many: ManyStreams, one: OneStream | None, slots: int | None) -> Line:
    together = f"{many.together:.1f} tok/s" if many.together else "never all at once"
    if many.together is None and slots is not None and slots < many.count:
        together += f" (the model has {slots} slots)"
    text = f"{together} over {many.together_s:.1f} s; whole run {many.whole:.1f} tok/s"
    asks = []
    if many.count == 16:
        against = many.together / stats.median(one.http) if one and many.together else None
        asks = [ask("of one stream", against, ">=", SIXTEEN_OF_ONE)]
    return Line(f"{many.count} streams together", text, asks)


def of_prefill(measured: Prefill) -> list[Line]:
    size = measured.streams[0].prompt_tokens
    ttft, rate = stats.median(measured.ttft_ms), stats.median(measured.rate)
    each = ", ".join(f"{ms:.0f}" for ms in measured.ttft_ms)
    return [
        Line(f"first token of {size} new tokens", f"{ttft:.0f} ms (each: {each})"),
        Line("prefill", f"{rate:.0f} tok/s"),
    ]


def of_turns(turns: Sequence[Turn]) -> list[Line]:
    lines = [
        Line(
            f"conversation, turn {number}",
            f"first token {t.ttft_ms:5.0f} ms; "
            f"prompt {t.prompt}, cached {t.cached}, prefilled {t.prefilled}, new {t.new}",
        )
        for number, t in enumerate(turns, 1)
    ]
    later = turns[1:]
    extra = max(t.prefilled - t.new for t in later)
    text = f"first token {stats.median([t.ttft_ms for t in later]):.0f} ms (median)"
    lines.append(Line("conversation, turns 2 on", text, [ask("prefilled - new", extra, "<=", EXTRA_PREFILL)]))
    return lines


def of_arrival(seen: Arrival) -> list[Line]:
    usual = stats.median(seen.gaps_alone_ms)
    longest = max(seen.gaps_beside_ms, default=None)
    spread = ", ".join(f"p{p} {stats.percentile(seen.gaps_beside_ms, p):.0f}" for p in (50, 90, 99))
    text = f"{longest:.0f} ms ({spread}); alone {usual:.0f} ms (median)"
    if not seen.covered:
        text += "; the stream ended before the prompt was done"
    factor = longest / usual if longest is not None and usual else None
    kept = seen.rate_beside / seen.rate_alone if seen.rate_alone else None
    beside = f"{seen.rate_beside:.0f} tok/s, alone {seen.rate_alone:.0f}; first token after {seen.ttft_ms / 1000:.1f} s"
    return [
        Line(
            f"longest gap, {seen.prompt_tokens} tokens come", text, [ask("of the usual gap", factor, "<=", GAP_FACTOR)]
        ),
        Line("their prefill beside the stream", beside, [ask("of alone", kept, ">=", PREFILL_BESIDE)]),
    ]


def of_pair(seen: Pair) -> list[Line]:
    lines, shares = [], []
    for name, rate in seen.together.items():
        alone = stats.median(seen.alone[name])
        shares.append(rate / alone)
        text = f"{rate:.1f} tok/s; alone {_rates(seen.alone[name])}"
        lines.append(Line(f"{name} beside the other", text, [ask("of alone", shares[-1], ">=", SHARE)]))
    lines.append(
        Line("both, of what they do alone", f"{sum(shares):.2f}", [ask("sum of shares", sum(shares), ">=", SHARES)])
    )
    return lines


def _rates(values: Sequence[float]) -> str:
    each = ", ".join(f"{value:.1f}" for value in values)
    return f"{stats.median(values):.1f} tok/s (each: {each})"


def text_of(line: Line) -> str:
    parts = [f"  {line.title:<{_WIDTH}} {line.text}"]
    for a in line.asks:
        unknown = "not measured" if a.value is None else "not known"
        verdict = unknown if a.met is None else "ok" if a.met else "below"
        bound = f"{a.bound} " if a.bound else ""
        value = "-" if a.value is None else f"{bound}{a.value:.2f}"
        parts.append(f"{a.name} {value}, asked {a.relation} {a.limit:g}: {verdict}")
    return " | ".join(parts)


def head_of(m: Machine, versions: Mapping[str, str], url: str | None) -> list[str]:
    where = f"{m.cpu}, {m.cores} cores ({m.cpus} threads), {m.system} {m.arch}"
    with_what = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [f"machine: {where}, load {m.load:.2f} at the start", f"versions: {with_what}"]
    if m.load > _BUSY * m.cpus:
        lines.append("warning: other work has the cores; threads that wait for each other then lose far more than half")
    if url:
        lines.append(f"server: {url}; figures of the machine are this one's")
    return lines


def summary_of(report: Report) -> str:
    lines = [line for model in report.models.values() for line in model.lines] + report.pair_lines
    asks = [a for line in lines for a in line.asks]
    met, missing = sum(a.met is True for a in asks), sum(a.met is None for a in asks)
    text = f"{met} of {len(asks)} asks met"
    if missing:
        text += f", {missing} not measured"
    if report.errors:
        text += f", {len(report.errors)} measures failed"
    return f"{text}; {report.seconds:.0f} s, load {report.load_at_end:.2f} at the end"
