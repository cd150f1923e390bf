"""`twospeed serve`: the HTTP server in this process, the engine in a child."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from .config import ConfigOption

if TYPE_CHECKING:
    from ..config import Config
    from ..types import ModelStatus
    from .progress import Reporter

_USAGE, _FAILED = 2, 1


def register(app: typer.Typer) -> None:
    app.command()(serve)


def serve(
    path: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Listen here.  [default: server.host]", show_default=False)] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="0: any free port.  [default: server.port]", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append what the scheduler was asked and decided there, without texts, for `twospeed replay`.",
            show_default=False,
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log requests, without what is in them.")] = False,
) -> None:
    """Serve the models over HTTP until SIGINT or SIGTERM; what runs then may finish, a second signal ends at once.

    SIGHUP, or `twospeed reload`, has the configuration read again.
    """
    from ..api.server import Server, listen
    from ..app import create_app
    from ..configfile import ConfigError, find_config
    from ..gateway.auth import StartRefusedError
    from ..gateway.reload import Outcome, Reloader
    from ..models.store import Progress, Store
    from ..observe.logs import setup_logging
    from .progress import Reporter
    from .runfile import RunFile

    file = find_config(path).absolute()
    config = _configured(file, host, port)
    trace = _checked(trace)
    setup_logging(verbose=verbose)
    reporter = Reporter()
    display = ExitStack()

    def on_state(status: ModelStatus) -> None:
        _note(reporter, status)
        if app.state.gateway.catalog.settled():
            display.close()  # bars would be drawn ten times a second for as long as we serve

    try:
        app = create_app(
            config,
            on_progress=lambda now: reporter.show(Progress(now.name, now.phase, now.done, now.total)),
            on_state=on_state,
            trace=trace,
        )
    except StartRefusedError as exc:
        _stop(str(exc), _USAGE)
    try:
        listener = listen(config.server.host, config.server.port)
    except OSError as exc:
        _stop(_why_not_listening(config, exc), _FAILED)
    address = _url(listener.getsockname())
    run_file = RunFile(Store().root, port=listener.getsockname()[1], config=file)

    def on_reload(outcome: Outcome) -> None:
        run_file.reloaded(applied=outcome.applied, notes=outcome.notes)

    def on_listening() -> None:
        run_file.write()
        _greet(reporter, address, config)

    reloader = Reloader(
        app.state.gateway, lambda: _configured(file, host, port), refusals=(ConfigError,), report=on_reload
    )
    server = Server(app, app.state.gateway, on_listening, on_hangup=reloader.request)
    with listener, run_file, display:
        display.enter_context(reporter)
        server.run([listener])
    reporter.note("Stopped.")


def _configured(file: Path, host: str | None, port: int | None) -> Config:
    """The configuration with the command line's wishes. Raises ConfigError."""
    from ..configfile import load_config

    config = load_config(file)
    wanted = {"host": host, "port": port}
    server = config.server.model_copy(update={key: value for key, value in wanted.items() if value is not None})
    return config.model_copy(update={"server": server})


def _checked(trace: Path | None) -> Path | None:
    """The file for the trace, made now: what is wrong with it is better said before a model is loaded."""
    import os

    from ..engine.trace import TraceError
    from ..engine.tracefile import open_trace

    if trace is None:
        return None
    try:
        os.close(open_trace(trace))
    except OSError as exc:
        _stop(f"{trace}: can't be written: {exc.strerror or exc}", _USAGE)
    except TraceError as exc:
        _stop(f"{trace}: left alone, as {exc}", _USAGE)
    return trace.absolute()


def _greet(reporter: Reporter, address: str, config: Config) -> None:
    key = ' -H "Authorization: Bearer $KEY"' if config.server.api_keys else ""
    model = next(iter(config.models))
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"Hello!"}}]}}'
    reporter.note(f"Listening on {address}")
    reporter.note(f"Try: curl {address}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'")


def _note(reporter: Reporter, status: ModelStatus) -> None:
    info = f": {status.info.description}, {status.info.context} tokens of context" if status.info else ""
    detail = f": {status.detail}" if status.detail else ""
    reporter.note(f"{status.name}: {status.state}{info or detail}")


def _url(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _why_not_listening(config: Config, exc: OSError) -> str:
    host, port = config.server.host, config.server.port
    if exc.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; stop what uses it or choose another with --port"
    return f"can't listen on {host} port {port}: {exc.strerror or exc}"


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
