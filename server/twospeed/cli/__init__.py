"""The command line: one Typer app; each module here adds its commands with `register`.

Command modules import what they need inside their functions, so that `twospeed --help` answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import bench, chat, config, doctor, keys, reload, replay, serve, store, top

app = typer.Typer(
    name="twospeed",
    help="A local LLM server: a fast and a smart model behind one OpenAI-style API.",
    epilog="Start with `twospeed doctor`, then `twospeed pull` and `twospeed serve`.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # they may hold prompts and keys
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"twospeed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _module in (serve, reload, chat, top, replay, store, config, keys, doctor, bench):  # in the order of --help
    _module.register(app)
