"""`twospeed reload`: have a running server read its models.yaml again."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from pathlib import Path

    import psutil

    from .runfile import Record

_FAILED, _USAGE = 1, 2
_ANSWER_S = 30.0


def register(app: typer.Typer) -> None:
    app.command()(reload)


def reload(
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The server's port, if several run.", show_default=False),
    ] = None,
) -> None:
    """Have a running server take in its changed models.yaml: tiers, preview, keys and limits; no stream is cut.

    The server checks the file first, and a wrong one changes nothing.
    """
    from ..models.store import Store

    root = Store().root
    record, process = _find(root, port)
    _signal(process)
    after = _wait(root, record, process)
    if after is None:
        _stop("The server did not say that it has reloaded; see its log.", _FAILED)
    if not after.applied:
        _stop("\n".join([*after.notes, "Nothing has changed."]), _USAGE)
    typer.echo(f"Reloaded {after.config} on port {after.port}.")
    if after.notes:
        typer.echo(f"Needs a restart to take effect: {', '.join(after.notes)}")


def _find(root: Path, port: int | None) -> tuple[Record, psutil.Process]:
    from .runfile import running

    found = [server for server in running(root) if port in (None, server[0].port)]
    if not found:
        _stop("No server runs here" + (f" on port {port}." if port else "; start one with `twospeed serve`."), _FAILED)
    if len(found) > 1:
        ports = ", ".join(str(record.port) for record, _ in found)
        _stop(f"Several servers run: choose one with --port ({ports}).", _USAGE)
    return found[0]


def _signal(process: psutil.Process) -> None:
    import psutil

    try:
        process.send_signal(signal.SIGHUP)  # psutil looks once more whether it is still that process
    except psutil.Error as exc:
        _stop(f"The server can't be signalled: {type(exc).__name__}.", _FAILED)


def _wait(root: Path, before: Record, process: psutil.Process) -> Record | None:
    """The record once the server has reloaded; None if it doesn't say so in time, or ends."""
    from .runfile import read

    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline and process.is_running():
        now = read(root, before.port)
        if now is not None and now.pid == before.pid and now.reloads > before.reloads:
            return now
        time.sleep(0.02)
    return None


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
