"""`twospeed bench`: measure this machine, this configuration, now."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .config import ConfigOption

KEY_ENV = "TWOSPEED_API_KEY"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure the models of a configuration, or of a running server.", no_args_is_help=True)
    group.command()(quick)
    group.command()(tiers)
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

    from ..bench.run import choose, served
    from ..bench.run import quick as measure
    from ..bench.setting import Voice
    from ..configfile import find_config, load_config

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server we started is then ended, as for Ctrl-C
    config = load_config(find_config(path))
    key = os.environ.get(KEY_ENV)
    wanted = _words(models) or None
    with _ending_clearly():
        names = choose(config, wanted) if url is None else wanted or asyncio.run(served(url, key))
        report = measure(config, names, url, key, Voice(_say, _progress))
    _keep_samples(report, json_file)
    if report.errors:
        raise typer.Exit(1)


def tiers(
    *,
    path: ConfigOption = None,
    model: Annotated[
        str | None, typer.Option(help="What to measure; default: smart, or with --url the first model there.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Measure the server that runs here, of any make that speaks OpenAI's chat format."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The server's key.", envvar=KEY_ENV)] = None,
    loads: Annotated[
        str, typer.Option(metavar="N,N", help="How many default streams run beside the measured request, in turn.")
    ] = "4,8,16,32",
    workloads: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Default: all, see docs/benchmarks.md.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds of each workload under each load.")] = 2,
    patience: Annotated[float, typer.Option(min=0.1, help="Seconds that a first token is waited for.")] = 90.0,
    watch: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the background is watched before each measured request.")
    ] = 3.0,
    quick_: Annotated[
        bool, typer.Option("--quick", help="Two workloads, load 16, one round, none of the measures beside.")
    ] = False,
    extras: Annotated[
        bool, typer.Option(help="Also 16 default streams, long prompts that arrive, and seats that run out.")
    ] = True,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all samples there, as JSON.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots there.")
    ] = None,
) -> None:
    """Does the ultrafast tier keep its speed while default traffic runs, and what does that traffic lose?

    Starts a server of its own, and says of each figure that something is asked of whether it is met. Takes an hour
    or two on two cores; --quick some minutes. Exit code 1: something failed to run.
    """
    import asyncio

    from ..bench.run import choose, served
    from ..bench.setting import Voice
    from ..bench.tiers.asking import Bounds
    from ..bench.tiers.grid import Plan
    from ..bench.tiers.page import page
    from ..bench.tiers.run import chosen
    from ..bench.tiers.run import tiers as measure
    from ..bench.tiers.workloads import QUICK, WORKLOADS
    from ..configfile import find_config, load_config

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = load_config(find_config(path))
    with _ending_clearly():
        plan = Plan(
            workloads=chosen(_words(workloads) or list(QUICK if quick_ else WORKLOADS)),
            loads=[16] if quick_ else _counts(loads),
            repeat=1 if quick_ else repeat,
            bounds=Bounds(first_s=patience),
            before_s=watch,
            extras=extras and not quick_,
        )
        if url is None:
            name = choose(config, [model or "smart"])[0]
        else:
            name = model or _first(asyncio.run(served(url, key)), url)
        report = measure(config, name, url, key, plan=plan, voice=Voice(_say, _progress))
    _keep_samples(report, json_file)
    if html_file is not None:
        html_file.write_text(page(report), "utf-8")
        typer.echo(f"the report: {html_file}", err=True)
    if report.interrupted:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130)
    if report.errors or any(sample.error for sample in report.samples):
        raise typer.Exit(1)


@contextmanager
def _ending_clearly() -> Iterator[None]:
    """What cannot be measured, and Ctrl-C, end the command with a line and an exit code."""
    from ..bench.client import BenchError

    try:
        yield
    except BenchError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None


def _keep_samples(report: object, file: Path | None) -> None:
    import msgspec

    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        typer.echo(f"all samples: {file}", err=True)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _counts(text: str) -> list[int]:
    words = _words(text)
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise typer.BadParameter(f"{text!r} is not a list of numbers above 0", param_hint="--loads")
    return sorted({int(word) for word in words})


def _first(names: list[str], url: str) -> str:
    from ..bench.client import BenchError

    if not names:
        raise BenchError(f"the server at {url} has no model ready; name one with --model")
    return names[0]


def _say(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def _progress(text: str) -> None:
    typer.echo(f"... {text}", err=True)
