"""`twospeed top`: how the service tiers and models of a running server stand, live in a terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .chat import KEY_ENV, URL

_EVERY_S = 1.0
_PATIENCE_S = 5.0


class GoneError(Exception):
    """The server does not answer now; it may again."""


class RefusedError(Exception):
    """The server answered, and asking again would not help."""


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    url: Annotated[str, typer.Option(help=f"The server; its key, if any, is taken from {KEY_ENV}.")] = URL,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Its key; the environment is a better place.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what /v1/tiers says, once, as JSON.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end, as in a pipe.")] = False,
) -> None:
    """Seats, queues, speed and shares of every service tier, once a second. Ctrl-C ends it."""
    try:
        with Source(url, key or os.environ.get(KEY_ENV)) as source:
            if as_json:
                typer.echo(json.dumps(source.board(), indent=2))
            elif once or not sys.stdout.isatty():
                _print(source)
            else:
                _live(source)
    except (GoneError, RefusedError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None  # it is how one leaves


class Source:
    """Asks a server for its board; a context manager."""

    def __init__(self, url: str, key: str | None) -> None:
        import httpx

        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=_PATIENCE_S)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise RefusedError(f"{url}: {error}") from error

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def board(self) -> dict[str, Any]:
        """What /v1/tiers says. Raises GoneError, RefusedError."""
        import httpx

        try:
            answer = self._http.get("/v1/tiers")
        except httpx.UnsupportedProtocol as error:
            raise RefusedError(f"{self.url}: {error}") from error
        except httpx.HTTPError as error:
            raise GoneError(f"no server answers at {self.url}") from error
        if answer.status_code >= 500:
            raise GoneError(f"{self.url} answers with status {answer.status_code}")
        try:
            board = answer.json()
            if answer.status_code != 200:
                raise RefusedError(str(board["error"]["message"]))
            if board["object"] != "tiers":
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(f"{self.url} has no service tiers: it is not twospeed, or an older one") from error
        return dict(board)


def _print(source: Source) -> None:
    from rich.console import Console

    from .top_view import screen

    Console(highlight=False, emoji=False).print(screen(source.url, source.board()))


def _live(source: Source) -> None:
    from rich.console import Console
    from rich.live import Live

    from .top_view import screen

    console = Console(highlight=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        watch(
            source.board,
            lambda board, problem: live.update(screen(source.url, board, problem), refresh=True),
            lambda: time.sleep(_EVERY_S),
        )


def watch(
    ask: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any] | None, str | None], None],
    pause: Callable[[], None],
) -> None:
    """Ask and show for ever. A server that went away is waited for, with its last board still shown."""
    board: dict[str, Any] | None = None
    while True:
        problem = None
        try:
            board = ask()
        except GoneError as error:
            problem = str(error)
        show(board, problem)
        pause()
