"""From figures to the lines a person reads, each with what is asked of it and whether that is met. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from .. import stats
from ..results import Ask, Line
from .results import Cell, Comparison, Conserved, Figure, Gaps, Relation, Seats, TiersReport
from .workloads import WORKLOADS

KEPT = 0.85  # of ultrafast's own speed alone
TTFT_LOWER = 8.0
TTFT_OF_IDLE = 1.5
GAP = 3.0
TWO_AT_ONCE = 0.45
REFUSED_MS = 50.0
SPEED = {
    ("chat", 16): 5.0,
    ("chat", 32): 8.0,
    ("code-edit", 16): 10.0,
    ("code-edit", 32): 14.0,
    ("code-edit-predicted", 16): 10.0,
    ("code-edit-predicted", 32): 14.0,
}
OF_PLAIN = {"chat": 0.97, "code-edit": 2.2, "code-edit-predicted": 2.2, "quote": 1.3}


def ask(name: str, figure: Figure | None, relation: Relation, limit: float) -> Ask:
    """A lower limit can show that enough was reached, an upper one that it was not; else nobody knows."""
    if figure is None:
        return Ask(name, None, ">=" if relation == ">=" else "<=", limit, None)
    enough = figure.value >= limit if relation == ">=" else figure.value <= limit
    known = figure.bound in ("", relation) if enough else figure.bound != relation
    return Ask(name, figure.value, ">=" if relation == ">=" else "<=", limit, enough if known else None, figure.bound)


def of_ultrafast(asked: Ask, served: Collection[str | None]) -> Ask:
    """What another tier reached is nothing that ultrafast has shown; what it missed stays missed."""
    other = any(name not in ("ultrafast", "not told", None) for name in served)
    return msgspec.structs.replace(asked, met=None) if asked.met and other else asked


def shown(figure: Figure | None, unit: str = "", places: int = 0) -> str:
    if figure is None:
        return "-"
    bound = f"{figure.bound} " if figure.bound else ""
    return f"{bound}{figure.value:,.{places}f}{unit}"


def of_cell(cell: Cell) -> Line:
    title = f"{cell.workload}, {cell.tier}" + (f", load {cell.load}" if cell.load else ", alone")
    ttft = f"first token p50 {shown(cell.ttft_p50_ms)} p95 {shown(cell.ttft_p95_ms)} ms"
    parts = [f"{cell.rate:.1f} tok/s" if cell.rate is not None else "no speed", ttft]
    if cell.gap_p99_ms is not None:
        parts.append(f"gap p50 {cell.gap_p50_ms:.0f} p99 {cell.gap_p99_ms:.0f} max {cell.gap_max_ms:.0f} ms")
    if cell.accepted_per_step is not None:
        parts.append(f"drafts a step {cell.drafted_per_step:.1f}, accepted {cell.accepted_per_step:.1f}")
    return Line(title, "; ".join(parts + remarks(cell)))


def remarks(cell: Cell) -> list[str]:
    """What is not as it should be, so that no figure is taken for more than it is."""
    out = []
    if other := {name: count for name, count in cell.served.items() if name != cell.tier}:
        served = ", ".join(f"{name} ({count})" if len(cell.served) > 1 else name for name, count in other.items())
        out.append(f"asked {cell.tier}, served {served}")
    if cell.silent and cell.waited_ms:
        out.append(f"no token within {cell.waited_ms / 1000:.1f} s: {cell.silent} of {cell.samples}")
    if cell.cut:
        out.append(f"{cell.cut} cut before the end")
    if cell.estimated:
        out.append("tokens estimated from text")
    if cell.failed:
        out.append(f"{cell.failed} failed")
    return out


def of_comparison(
    c: Comparison, default: Cell, ultrafast: Cell, alone: Cell | None, step_ms: float | None
) -> list[Line]:
    """Every ratio with both its sides: one that was won by making the other slower is to be seen as that."""
    head = f"{c.workload}, load {c.load}" if c.load else f"{c.workload}, alone"
    asked = (c.workload, c.load) in SPEED
    limit = SPEED.get((c.workload, c.load), 0.0)
    lines = [
        _ratio(f"{head}: ultrafast of default", _speeds(ultrafast, default), "times as fast", c.speed, limit),
        _ratio(
            f"{head}: first token",
            f"p95 {shown(ultrafast.ttft_p95_ms)} ms, default {shown(default.ttft_p95_ms)} ms",
            "times earlier",
            c.ttft,
            TTFT_LOWER if asked else 0.0,
        ),
    ]
    if c.load:
        rates = f"{_rate(ultrafast)}, alone {_rate(alone)} tok/s"
        lines.append(_ratio(f"{head}: ultrafast kept", rates, "of alone", c.kept, KEPT if asked else 0.0))
        lines.append(_of_idle(head, c, ultrafast, alone, step_ms if asked else None))
    lines.append(Line(f"{head}: same text", texts_of(c)))
    return [_only_ultrafast(line, ultrafast.served) for line in lines]


def _ratio(title: str, text: str, name: str, figure: Figure | None, limit: float) -> Line:
    """With an ask where there is a limit."""
    if limit:
        return Line(title, text, [ask(name, figure, ">=", limit)])
    return Line(title, f"{text}; {name} {shown(figure, places=2)}")


def _speeds(ultrafast: Cell, default: Cell) -> str:
    if default.rate is None and default.silent:
        both = (ultrafast.whole_rate, default.whole_rate)
        return f"{shown(both[0], places=2)}, default {shown(both[1], places=2)} tok/s with the wait"
    return f"{_rate(ultrafast)}, default {_rate(default)} tok/s"


def _rate(cell: Cell | None) -> str:
    return "-" if cell is None or cell.rate is None else f"{cell.rate:.1f}"


def _of_idle(head: str, c: Comparison, ultrafast: Cell, alone: Cell | None, step_ms: float | None) -> Line:
    """Asked, where the background's step is given: 1.5 of idle plus such a step."""
    title = f"{head}: first token of idle"
    now, idle = ultrafast.ttft_p95_ms, alone.ttft_p95_ms if alone else None
    text = f"p95 {shown(now)} ms, idle {shown(idle)} ms, {shown(c.ttft_of_alone, places=2)} times as long"
    if step_ms is None or idle is None:
        return Line(title, text)
    limit = round(TTFT_OF_IDLE * idle.value + step_ms, 1)
    return Line(title, f"{text}, a background step {step_ms:.0f} ms", [ask("ms", now, "<=", limit)])


def _only_ultrafast(line: Line, served: Collection[str | None]) -> Line:
    return msgspec.structs.replace(line, asks=[of_ultrafast(a, served) for a in line.asks])


def texts_of(c: Comparison) -> str:
    if not c.texts:
        return f"not compared: {c.uncompared}"
    apart = [d for d in c.texts if d.at is not None]
    text = f"{len(c.texts) - len(apart)} of {len(c.texts)} equal"
    where = ", ".join(f"character {d.at} of {d.of} ({(d.at or 0) / max(1, d.of):.0%})" for d in apart)
    return f"{text}; first difference at {where}" if apart else text


def of_background(cell: Cell) -> Line | None:
    """What the others lost while it ran."""
    span = cell.background
    if span is None:
        return None
    kept = span.during / span.before if span.before else None
    text = f"{span.before:.1f} tok/s before, {span.during:.1f} during ({span.streams:.1f} streams)"
    of_before = f"; kept {kept:.2f}" if kept is not None else "; kept -"
    title = f"{cell.workload}, load {cell.load}: others beside {cell.tier}"
    return Line(title, f"{text}{of_before}; their share of all tokens {span.share:.2f}")


def of_plain(workload: str, plain: Sequence[float], ultrafast: Cell) -> Line:
    usual = stats.median(plain)
    figure = Figure(ultrafast.rate / usual) if ultrafast.rate and usual else None
    text = f"{shown(Figure(ultrafast.rate) if ultrafast.rate else None, '', 1)} tok/s; the bare loop {usual:.1f}"
    asks = [ask("of plain decode", figure, ">=", OF_PLAIN[workload])] if workload in OF_PLAIN else []
    line = Line(f"{workload}, alone: ultrafast", text if asks else f"{text}; {shown(figure, 'x', 2)}", asks)
    return _only_ultrafast(line, ultrafast.served)


def of_conserved(seen: Conserved) -> Line:
    together = f"{seen.together:.1f} tok/s together" if seen.together is not None else "never all at once"
    return Line(f"{seen.streams} default streams, nobody else", f"{together}; whole run {seen.whole:.1f} tok/s")


def of_gaps(gaps: Gaps) -> Line:
    usual, longest = stats.median(gaps.alone_ms), max(gaps.beside_ms, default=None)
    tokens = gaps.prompt_tokens or "about 1,500"
    text = f"longest gap {shown(Figure(longest) if longest is not None else None)} ms, alone {usual:.0f} ms (median)"
    if gaps.answered < gaps.prompts:
        text += f"; {gaps.answered} of {gaps.prompts} prompts read within {gaps.seconds:.0f} s"
    else:
        text += f"; read in {gaps.seconds:.1f} s"
    figure = Figure(longest / usual, "" if gaps.covered else ">=") if longest is not None and usual else None
    if not gaps.covered:
        text += "; the stream ended before that"
    which = "a prompt comes" if gaps.prompts == 1 else f"{gaps.prompts} prompts come"
    if gaps.served != "ultrafast":
        text += f"; asked ultrafast, served {gaps.served or 'not told'}"
    line = Line(f"{which} ({tokens} tokens)", text, [ask("of the usual gap", figure, "<=", GAP)])
    return _only_ultrafast(line, [gaps.served])


def of_seats(seats: Seats) -> list[Line]:
    alone = stats.median(seats.alone)
    lines = []
    for number, (rate, served) in enumerate(zip(seats.together, seats.served, strict=True), 1):
        text = f"{rate:.1f} tok/s; alone {alone:.1f}"
        if served != "ultrafast":
            text += f"; asked ultrafast, served {served or 'not told'}"
        share = Figure(rate / alone) if alone else None
        line = Line(f"ultrafast {number} of two at once", text, [ask("of alone", share, ">=", TWO_AT_ONCE)])
        lines.append(_only_ultrafast(line, [served]))
    for extra in seats.extras:
        how = "no answer" if not extra.status else f"status {extra.status}"
        if extra.status == 200:
            how = f"served {extra.served or 'not told'}"
        asks = []
        if extra.status and extra.served != "ultrafast":
            asks = [ask("ms to the answer", Figure(extra.headers_ms), "<=", REFUSED_MS)]
        first = f", first token {extra.ttft_ms:.0f} ms" if extra.ttft_ms is not None else ""
        text = f"{how} after {extra.headers_ms:.0f} ms{first}"
        lines.append(Line(f"ultrafast {extra.number}, beside {extra.number - 1}", text, asks))
    return lines


def title_of(workload: str) -> str:
    return WORKLOADS[workload].title


def summary_of(report: TiersReport) -> str:
    asks = [a for line in report.lines for a in line.asks]
    met, below = sum(a.met is True for a in asks), sum(a.met is False for a in asks)
    text = f"{met} of {len(asks)} asks met, {below} not, {len(asks) - met - below} not known"
    if report.errors:
        text += f", {len(report.errors)} measures failed"
    return f"{text}; {report.seconds:.0f} s, load {report.load_at_end:.2f} at the end"
