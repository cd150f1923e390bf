"""How a long store operation shows itself: bars on a terminal, a line now and then elsewhere.

Progress and notes go to stderr, results to stdout.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Self

import typer
from rich import progress as bars
from rich.console import Console

from ..models.job import Progress, log, size_text

_LINE_EVERY_S = 5.0


class Reporter(logging.Handler):
    """Shows progress (`show`), the store's notes, and results; a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._console = Console(stderr=True, markup=False, highlight=False)
        self._bars = _make_bars(self._console) if self._console.is_terminal else None
        self._tasks: dict[tuple[str, str], bars.TaskID] = {}
        self._line: tuple[str, str] | None = None
        self._line_at = 0.0
        self._level = log.level

    def __enter__(self) -> Self:
        log.addHandler(self)
        log.setLevel(logging.INFO)
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()
        log.setLevel(self._level)
        log.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.note(record.getMessage())

    def note(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def result(self, text: str) -> None:
        if self._bars:
            self._bars.stop()  # or the live bars and stdout would write over each other
            self._bars = None
            typer.echo(text)
            self._bars = _make_bars(self._console)
            self._tasks.clear()
            self._bars.start()
        else:
            typer.echo(text)

    def show(self, now: Progress) -> None:
        key = (now.name, now.phase)
        if self._bars:
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(f"{now.name}: {now.phase}", total=now.total)
            self._bars.update(self._tasks[key], completed=now.done, total=now.total)
            return
        at = time.monotonic()
        if key != self._line or at - self._line_at >= _LINE_EVERY_S:
            self._line, self._line_at = key, at
            self.note(f"{now.name}: {now.phase}: {_amount(now)}")


def _amount(now: Progress) -> str:
    if not now.total:
        return size_text(now.done)
    return f"{100 * now.done // now.total} % of {size_text(now.total)}"


def _make_bars(console: Console) -> bars.Progress:
    return bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
        console=console,
    )
