"""`twospeed doctor`: show what doctor.py finds."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .config import ConfigOption

MARKS = {"ok": ("ok  ", typer.colors.GREEN), "warn": ("warn", typer.colors.YELLOW), "fail": ("FAIL", typer.colors.RED)}


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    path: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether this machine can run this configuration, and how to fix what is wrong. Exit code 1: it cannot."""
    from ..doctor import examine

    checks = examine(path)
    broken = any(check.status == "fail" for check in checks)
    if as_json:
        typer.echo(json.dumps({"ok": not broken, "checks": [check._asdict() for check in checks]}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        indent = "\n" + " " * (width + 8)
        for check in checks:
            mark, color = MARKS[check.status]
            detail = check.detail.replace("\n", indent)
            typer.echo(f"{typer.style(mark, fg=color)}  {check.name:<{width}}  {detail}")
            if check.fix:
                typer.echo(f"{indent[1:]}fix: {check.fix.replace(chr(10), indent + '     ')}")
    if broken:
        raise typer.Exit(1)
