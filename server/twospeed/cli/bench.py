"""`twospeed bench quick`: measure this machine, this configuration, now."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from .config import ConfigOption

KEY_ENV = "TWOSPEED_API_KEY"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure the models of a configuration, or of a running server.", no_args_is_help=True)
    group.command()(quick)
    app.add_typer(group, name="bench")


def quick(
    path: ConfigOption = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="What to measure; default: the models that are loaded at the start."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help=f"Measure the server that runs here; its key, if any, in {KEY_ENV}.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all samples there, as JSON.")
    ] = None,
) -> None:
    """Decode, prefill and latency with their baselines, in a few minutes. Exit code 1: something failed to run.

    Starts a server of its own, and says of each figure that something is asked of whether it is met.
    """
    import asyncio
    import os

    import msgspec

    from ..bench.client import BenchError
    from ..bench.run import choose, served
    from ..bench.run import quick as measure
    from ..bench.setting import Voice
    from ..configfile import find_config, load_config

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server we started is then ended, as for Ctrl-C
    config = load_config(find_config(path))
    key = os.environ.get(KEY_ENV)
    wanted = [name.strip() for name in models.split(",") if name.strip()] if models else None
    try:
        names = choose(config, wanted) if url is None else wanted or asyncio.run(served(url, key))
        report = measure(config, names, url, key, Voice(_say, _progress))
    except BenchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        typer.echo(f"all samples: {json_file}", err=True)
    if report.errors:
        raise typer.Exit(1)


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def _progress(text: str) -> None:
    typer.echo(f"... {text}", err=True)
