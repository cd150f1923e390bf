"""`twospeed config`: print, check, or describe the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="PATH", help="models.yaml to read; default: ./models.yaml, else our own."),
]


def register(app: typer.Typer) -> None:
    app.command()(config)


def config(
    path: ConfigOption = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the file is right.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print models.yaml's JSON Schema, for editors.")] = False,
) -> None:
    """Print the whole effective configuration. It is itself a models.yaml; secrets show as their sha256."""
    from ..configfile import effective_text, find_config, json_schema, load_config

    if schema:
        typer.echo(json.dumps(json_schema(), indent=2))
        return
    file = find_config(path)
    loaded = load_config(file)
    if check:
        typer.echo(f"{file}: ok ({', '.join(loaded.models)})")
    else:
        typer.echo(f"# in effect from {file}\n{effective_text(loaded)}", nl=False)
