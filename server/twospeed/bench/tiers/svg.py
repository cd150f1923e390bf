"""Plots as inline SVG: pure functions from numbers to text. Colours are CSS classes of the page around them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_W, _H = 440, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 14, 40


class Bar(NamedTuple):
    """`label`: what stands above it, with its limit sign. `value` None: nothing to draw but the label."""

    value: float | None
    label: str


class Series(NamedTuple):
    name: str
    css: str
    bars: list[Bar]


class Track(NamedTuple):
    """A line through points (x, y), ascending in x."""

    name: str
    css: str
    points: list[tuple[float, float]]


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to at least `top`, four to six of them."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / 4
    base = 10 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around both."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def bars(
    name: str, title: str, unit: str, groups: Sequence[str], series: Sequence[Series], *, log: bool = False
) -> str:
    """Bars side by side for each group. `name` is an id, unique in the page."""
    values = [bar.value for one in series for bar in one.bars if bar.value is not None and bar.value > 0]
    if not values:
        return _frame(name, title, unit, [_text(_W / 2, _H / 2, "nothing was measured", "middle")])
    marks = log_ticks(min(values), max(values)) if log else ticks(max(values) * 1.08)
    parts = _axis(marks, log)
    bottom = _H - _BOTTOM
    width = (_W - _LEFT - _RIGHT) / len(groups)
    thick = width * 0.8 / len(series)
    for g, group in enumerate(groups):
        start = _LEFT + g * width + width * 0.1
        parts.append(_text(start + width * 0.4, bottom + 15, group, "middle"))
        for s, one in enumerate(series):
            bar = one.bars[g]
            x = start + s * thick
            y = bottom if bar.value is None or bar.value <= 0 else _y(bar.value, marks, log)
            hint = escape(f"{one.name}, {group}: {bar.label} {unit}")
            parts.append(
                f'<rect class="{one.css}" x="{x:.1f}" y="{y:.1f}" width="{thick * 0.92:.1f}" '
                f'height="{bottom - y:.1f}"><title>{hint}</title></rect>'
            )
            parts.append(_text(x + thick * 0.46, y - 3, bar.label, "middle", "small"))
    return _frame(name, title, unit, parts + _legend([(one.name, one.css) for one in series]))


def tracks(name: str, title: str, x_unit: str, y_unit: str, lines: Sequence[Track]) -> str:
    """Lines over a common x axis from 0."""
    points = [point for line in lines for point in line.points]
    if not points:
        return _frame(name, title, y_unit, [_text(_W / 2, _H / 2, "nothing was measured", "middle")])
    marks, across = ticks(max(y for _, y in points)), ticks(max(x for x, _ in points))
    parts = _axis(marks, False)
    for mark in across:
        parts.append(_text(_x(mark, across), _H - _BOTTOM + 15, f"{mark:g}", "middle"))
    parts.append(_text(_W - _RIGHT, _H - 4, x_unit, "end"))
    for line in lines:
        path = " ".join(f"{_x(x, across):.1f},{_y(y, marks, False):.1f}" for x, y in line.points)
        parts.append(f'<polyline class="{line.css} line" points="{path}"><title>{escape(line.name)}</title></polyline>')
    return _frame(name, title, y_unit, parts + _legend([(line.name, line.css) for line in lines]))


def _x(value: float, marks: Sequence[float]) -> float:
    return _LEFT + value / marks[-1] * (_W - _LEFT - _RIGHT)


def _y(value: float, marks: Sequence[float], log: bool) -> float:
    low, high = marks[0], marks[-1]
    part = math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)
    return _H - _BOTTOM - part * (_H - _TOP - _BOTTOM)


def _axis(marks: Sequence[float], log: bool) -> list[str]:
    parts = []
    for mark in marks:
        y = _y(mark, marks, log)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 5, y + 4, f"{mark:,g}", "end"))
    return parts


def _legend(entries: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], float(_LEFT)
    for name, css in entries:
        parts.append(f'<rect class="{css}" x="{x:.1f}" y="{_H - 13}" width="10" height="10"/>')
        parts.append(_text(x + 14, _H - 4, name))
        x += 24 + 6.4 * len(name)
    return parts


def _text(x: float, y: float, text: str, anchor: str = "start", css: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _frame(name: str, title: str, unit: str, parts: Sequence[str]) -> str:
    """The plot with a title that screen readers say."""
    head = f'<title id="{escape(name)}-t">{escape(title)} ({escape(unit)})</title>'
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(unit)}</small></figcaption>"
        f'<svg viewBox="0 0 {_W} {_H}" role="img" aria-labelledby="{escape(name)}-t">{head}{"".join(parts)}</svg>'
        "</figure>"
    )
