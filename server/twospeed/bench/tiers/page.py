"""The report as one HTML page that needs nothing else: no script, no font, no address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..results import Ask
from . import svg
from .figures import chars_per_token, tokens_of
from .results import TIERS, Cell, Figure, Sample, TiersReport
from .verdicts import remarks, shown, summary_of, texts_of, title_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5c6670; --paper: #fff; --rule: #d8dde2;
  --a: #7a8794; --b: #0b6bcb; --good: #17733a; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa5b0; --paper: #14181c; --rule: #343c44;
  --a: #8794a1; --b: #5aa9f8; --good: #5cc98a; --bad: #ff8a80; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1400px; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--rule); }
small, .soft { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: 1rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
svg text { font-size: 11px; fill: var(--soft); } svg text.small { font-size: 9px; fill: var(--ink); }
.grid { stroke: var(--rule); } .a { fill: var(--a); } .b { fill: var(--b); }
.line { fill: none; stroke-width: 2; } .a.line { stroke: var(--a); } .b.line { stroke: var(--b); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { position: sticky; top: 0; background: var(--paper); } .t { text-align: left; }
td.note { white-space: normal; text-align: left; min-width: 14rem; }
.ok { color: var(--good); } .below { color: var(--bad); font-weight: 600; }
"""


def page(report: TiersReport) -> str:
    name = f"twospeed bench tiers: {report.model}"
    body = [
        f"<h1>{escape(name)}</h1>",
        _head(report),
        "<h2>What is asked, and what came of it</h2>",
        _asks(report),
        "<h2>Output speed, first token and what the others lost</h2>",
        '<p class="soft">Load: how many <code>default</code> streams ran beside the measured request. A figure with '
        "&ge; or &le; is a limit: nobody waited longer.</p>",
        f'<div class="plots">{"".join(_plots(report))}</div>',
        "<h2>Tokens as they came</h2>",
        f'<div class="plots">{"".join(_timelines(report))}</div>',
        "<h2>All cells</h2>",
        _cells(report.cells),
        "<h2>Are the texts equal?</h2>",
        _texts(report),
        "<h2>Every line</h2>",
        _lines(report),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Cells are text and are escaped here. The first `texts` columns are words; one whose head is empty is a note."""

    def tag(kind: str, number: int, text: str) -> str:
        css = "t" if number < texts else "note" if not head[number] else ""
        return f'<{kind} class="{css}">{escape(text)}</{kind}>'

    top = "".join(tag("th", i, text) for i, text in enumerate(head))
    lines = "".join(f"<tr>{''.join(tag('td', i, text) for i, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _head(report: TiersReport) -> str:
    m = report.machine
    facts = [
        f"model {report.model}: {report.description or 'nothing more is told of it'}",
        f"server {report.url}" if report.url else "a server of the benchmark's own",
        f"{m.cpu}, {m.cores} cores ({m.cpus} threads), {m.system} {m.arch}, load {m.load:.2f} at the start, "
        f"{report.load_at_end:.2f} at the end",
        ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        f"started {report.started}, took {report.seconds:.0f} s",
        f"a first token was waited for {report.first_token_s:g} s",
    ]
    out = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    out += "".join(f"<li>note: {escape(note)}</li>" for note in report.notes)
    out += "".join(f'<li class="below">failed: {escape(error)}</li>' for error in report.errors)
    return f"<p><strong>{escape(summary_of(report))}</strong></p><ul>{out}</ul>"


def _verdict(a: Ask) -> str:
    unknown = "not measured" if a.value is None else "not known"
    css, word = {True: ("ok", "ok"), False: ("below", "not met"), None: ("soft", unknown)}[a.met]
    return f'<td class="{css}">{word}</td>'


def _asks(report: TiersReport) -> str:
    rows = []
    for line in report.lines:
        for a in line.asks:
            value = shown(Figure(a.value, a.bound), places=2) if a.value is not None else "-"
            rows.append(
                f'<tr><td class="t">{escape(line.title)}</td><td class="t">{escape(a.name)}</td>'
                f"<td>{escape(value)}</td><td>{escape(a.relation)} {a.limit:,.4g}</td>{_verdict(a)}"
                f'<td class="note">{escape(line.text)}</td></tr>'
            )
    if not rows:
        return '<p class="soft">Nothing is asked of what this run measured.</p>'
    head = '<th class="t">figure</th><th class="t"></th><th>value</th><th>asked</th><th></th><th></th>'
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _group(load: int) -> str:
    return "alone" if load == 0 else str(load)


def _plots(report: TiersReport) -> list[str]:
    found = []
    for workload in dict.fromkeys(c.workload for c in report.cells):
        cells = {(c.load, c.tier): c for c in report.cells if c.workload == workload}
        loads = sorted({load for load, _ in cells})
        groups = [_group(load) for load in loads]
        speed, ttft = [], []
        for tier, css in zip(TIERS, "ab", strict=True):
            of_tier = [cells.get((load, tier)) for load in loads]
            rates = [c.rate if c else None for c in of_tier]
            speed.append(svg.Series(tier, css, [_bar(Figure(rate) if rate is not None else None, 1) for rate in rates]))
            ttft.append(svg.Series(tier, css, [_bar(c.ttft_p95_ms if c else None) for c in of_tier]))
        title = title_of(workload)
        found.append(svg.bars(f"speed-{workload}", f"{title}: output", "tok/s", groups, speed))
        found.append(svg.bars(f"ttft-{workload}", f"{title}: first token, p95", "ms, log", groups, ttft, log=True))
        spans = [(load, c.background) for load in loads if load and (c := cells.get((load, "ultrafast")))]
        known = [(load, span) for load, span in spans if span]
        if known:
            others = [
                svg.Series("before", "a", [_bar(Figure(span.before), 1) for _, span in known]),
                svg.Series("during ultrafast", "b", [_bar(Figure(span.during), 1) for _, span in known]),
            ]
            named = [_group(load) for load, _ in known]
            found.append(svg.bars(f"others-{workload}", f"{title}: all others together", "tok/s", named, others))
    return found


def _bar(figure: Figure | None, places: int = 0) -> svg.Bar:
    return svg.Bar(figure.value if figure else None, shown(figure, places=places))


def _timelines(report: TiersReport) -> list[str]:
    """The first pair of each workload under the highest load."""
    top = max((s.load for s in report.samples), default=0)
    found = []
    for workload in dict.fromkeys(s.workload for s in report.samples):
        chars = chars_per_token([s for s in report.samples if s.workload == workload])
        lines = []
        for tier, css in zip(TIERS, "ab", strict=True):
            of = [s for s in report.samples if (s.workload, s.load, s.tier) == (workload, top, tier) and s.at_ms]
            if of:
                lines.append(svg.Track(tier, css, _points(of[0], chars)))
        title = f"{title_of(workload)}, {'alone' if top == 0 else f'load {top}'}"
        found.append(svg.tracks(f"line-{workload}", title, "seconds after it was sent", "tokens", lines))
    return found


def _points(sample: Sample, chars: float) -> list[tuple[float, float]]:
    each = tokens_of(sample, chars) / len(sample.at_ms)
    return [(0.0, 0.0)] + [(at / 1000, each * number) for number, at in enumerate(sample.at_ms, 1)]


def _number(value: float | None, places: int = 0) -> str:
    return shown(Figure(value), places=places) if value is not None else "-"


def _cells(cells: Sequence[Cell]) -> str:
    head = ["workload", "load", "tier", "first token p50 ms", "p95 ms", "tok/s", "with the wait", "gap p50 ms", "p99"]
    head += ["max", "tokens", "cached", "drafts a step", "accepted", "others before", "during", "their share", ""]
    rows = [
        [
            title_of(c.workload),
            _group(c.load),
            c.tier,
            shown(c.ttft_p50_ms),
            shown(c.ttft_p95_ms),
            _number(c.rate, 1),
            shown(c.whole_rate, places=1),
            _number(c.gap_p50_ms),
            _number(c.gap_p99_ms),
            _number(c.gap_max_ms),
            _number(c.tokens),
            "not told" if c.cached_tokens is None else _number(c.cached_tokens),
            "not told" if c.drafted_per_step is None else _number(c.drafted_per_step, 2),
            "not told" if c.accepted_per_step is None else _number(c.accepted_per_step, 2),
            _number(c.background.before if c.background else None, 1),
            _number(c.background.during if c.background else None, 1),
            _number(c.background.share if c.background else None, 2),
            "; ".join(remarks(c)),
        ]
        for c in cells
    ]
    return table(head, rows, texts=3)


def _texts(report: TiersReport) -> str:
    rows = [[title_of(c.workload), _group(c.load), texts_of(c)] for c in report.comparisons]
    return table(["workload", "load", "default and ultrafast, same prompt"], rows, texts=3)


def _lines(report: TiersReport) -> str:
    return table(["figure", ""], [[line.title, line.text] for line in report.lines])
