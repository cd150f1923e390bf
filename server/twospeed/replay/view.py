"""Reports as text: a column for each service tier of each model; two reports side by side in each cell. Pure."""

from __future__ import annotations

from collections.abc import Callable

from ..types import TIERS, ServiceTier
from .report import Line, Report, Spread

_NOTHING = "-"
_ARROW = " > "

_Key = tuple[ServiceTier, str]


def text(recorded: Report, what_if: Report | None = None) -> str:
    """Without `what_if` each cell is one figure, with it `recorded > what if`."""
    reports = [recorded, *([what_if] if what_if else [])]
    by_key = [{(line.tier, line.model): line for line in report.tiers} for report in reports]
    keys = sorted({key for lines in by_key for key in lines}, key=lambda key: (TIERS.index(key[0]), key[1]))
    rows = [["", *(f"{tier} {_clean(model)}" for tier, model in keys)]]
    for name, cell in _ROWS:
        cells = [[cell(lines[key]) if key in lines else _NOTHING for lines in by_key] for key in keys]
        rows.append([name, *(_ARROW.join(each) for each in cells)])
    head = _whole(recorded) if what_if is None else f"recorded: {_whole(recorded)}\nwhat if:  {_whole(what_if)}"
    legend = "" if what_if is None else "\nEach cell: recorded > what if.\n"
    return f"{head}\n{legend}\n{_table(rows)}"


def _whole(report: Report) -> str:
    ratio = report.measured_over_predicted
    lives = f" in {report.lives} engine processes" if report.lives != 1 else ""
    against = "" if ratio is None else f", {ratio:.2f} of what was predicted"
    busy = report.device_ms / 1000
    return f"{report.span_s:.1f} s{lives}, {report.steps} steps of {busy:.1f} s together{against}"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    first, *others = widths
    lines = [
        "  ".join([row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], others, strict=True))]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _clean(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name)  # a file must not drive the terminal


def _ms(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _p50(spread: Spread | None) -> str:
    return _ms(None if spread is None else spread.p50)


def _p95(spread: Spread | None) -> str:
    return _ms(None if spread is None else spread.p95)


_ROWS: list[tuple[str, Callable[[Line], str]]] = [
    ("sequences", lambda line: str(line.sequences)),
    ("of these cancelled", lambda line: str(line.cancelled)),
    ("tokens", lambda line: str(line.tokens)),
    ("wait p50, ms", lambda line: _p50(line.wait_ms)),
    ("wait p95, ms", lambda line: _p95(line.wait_ms)),
    ("first token p50, ms", lambda line: _p50(line.ttft_ms)),
    ("first token p95, ms", lambda line: _p95(line.ttft_ms)),
    ("tok/s of one p50", lambda line: _p50(line.tokens_per_second)),
    ("longest gap, ms", lambda line: _ms(line.longest_gap_ms)),
    ("device, ms", lambda line: _ms(line.device_ms)),
    ("device share", lambda line: f"{100 * line.device_share:.1f} %"),
    ("steps", lambda line: str(line.steps)),
    ("rows in a step", lambda line: f"{line.rows_per_step:.1f}"),
    ("drafted", lambda line: str(line.drafted)),
    ("drafts accepted", lambda line: str(line.drafts_accepted)),
    ("preemptions", lambda line: str(line.preemptions)),
]
