"""One screen of `twospeed top`: what /v1/tiers answered, as tables. Knows no HTTP and no time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

# What a server sends must not drive the terminal.
_CONTROLS: dict[int, None] = dict.fromkeys((*range(32), *range(127, 160)))
_NOTHING = "-"
_STATE_STYLES = {"ready": "green", "failed": "red"}


def screen(url: str, board: dict[str, Any] | None, problem: str | None = None) -> RenderableType:
    """`board` is the last answer; `problem` is why there is none newer."""
    parts: list[RenderableType] = [_head(url, board, problem)]
    if board is not None:
        parts += [Text(), _tiers(board), Text(), _models(board)]
    return Group(*parts)


def _head(url: str, board: dict[str, Any] | None, problem: str | None) -> Text:
    head = Text(f"twospeed top  {_clean(url)}  ")
    if problem is not None:
        stale = "; below is what it said last" if board is not None else ""
        head.append(f"{_clean(problem)}; waiting for it{stale}", style="yellow")
    elif board is not None:
        head.append(f"device busy {_percent(board.get('device_busy'))}", style="dim")
    return head


def _tiers(board: dict[str, Any]) -> Table:
    table = _table(("tier", "model"), ("seats", "queue", "tok/s", "TTFT p50", "p95", "share", "promised"))
    for tier in board.get("tiers", []):
        name, promise = Text(_clean(tier.get("tier"))), _percent(tier.get("share_promised"))
        for row in tier.get("models", []):
            first = row.get("ttft_ms") or {}
            busy = bool(row.get("seats_in_use") or row.get("queue") or row.get("tokens_per_second"))
            table.add_row(
                name,
                Text(_clean(row.get("model"))),  # plain text in a table would be read as markup
                f"{_count(row.get('seats_in_use'))}/{_count(row.get('seats'))}",
                _count(row.get("queue")),
                _rate(row.get("tokens_per_second")),
                _seconds(first.get("p50")),
                _seconds(first.get("p95")),
                _percent(row.get("share_used")),
                promise,
                style="" if busy else "dim",
            )
            name, promise = Text(), ""  # a tier's promise is for all models together
    return table


def _models(board: dict[str, Any]) -> Table:
    table = _table(("model", "state"), ("runs", "waits", "steps/s", "step", "rows", "KV cache"))
    for row in board.get("models", []):
        state, detail = _clean(row.get("state")), _clean(row.get("detail"))
        step = row.get("step_ms")
        table.add_row(
            Text(_clean(row.get("model"))),
            Text(f"{state}: {detail}" if detail else state, style=_STATE_STYLES.get(state, "yellow")),
            _count(row.get("running")),
            _count(row.get("waiting")),
            _rate(row.get("steps_per_second")),
            _NOTHING if step is None else f"{_rate(step)} ms",
            f"{_rate(row.get('decode_rows'))}+{_rate(row.get('prefill_rows'))}",  # decode and prefill
            _kv(row.get("kv_used_tokens"), row.get("kv_total_tokens")),
        )
    return table


def _table(texts: Iterable[str], numbers: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, header_style="bold")
    for name in texts:
        table.add_column(name, overflow="ellipsis", no_wrap=True, min_width=9, max_width=20)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    return table


def _clean(value: object) -> str:
    return str("" if value is None else value).translate(_CONTROLS)


def _figure(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:  # whatever is at the other end, it is not what this is for
        return None


def _count(value: Any) -> str:
    figure = _figure(value)
    return _NOTHING if figure is None else f"{figure:.0f}"


def _rate(value: Any) -> str:
    figure = _figure(value)
    return _NOTHING if figure is None else f"{figure:.{1 if figure < 100 else 0}f}"


def _percent(value: Any) -> str:
    figure = _figure(value)
    return _NOTHING if figure is None else f"{figure:.0%}"


def _seconds(ms: Any) -> str:
    figure = _figure(ms)
    return _NOTHING if figure is None else f"{figure / 1000:.2f} s"


def _kv(used: Any, total: Any) -> str:
    some, everything = _figure(used), _figure(total)
    if some is None or not everything:
        return _NOTHING
    return f"{some / everything:.0%} of {everything / 1024:.0f}k"
