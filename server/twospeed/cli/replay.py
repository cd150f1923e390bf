"""`twospeed replay`: a recorded trace through the scheduler once more, and under another policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from ..replay.whatif import Policy

_DIFFERENT, _USAGE = 1, 2


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `twospeed serve --trace FILE` has written.")],
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="PATH",
            help="What if: the service tiers, slots and step limits of this models.yaml.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, max=64, help="What if: of every model.", show_default=False)
    ] = None,
    max_step_ms: Annotated[
        float | None, typer.Option(min=0.001, help="What if: of every model.", show_default=False)
    ] = None,
    max_prefill_step_ms: Annotated[
        float | None, typer.Option(min=0.001, help="What if: of every model.", show_default=False)
    ] = None,
    speculation: Annotated[
        Literal["off", "auto", "eager"] | None, typer.Option(help="What if: of every tier.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Check that the scheduler still plans what was recorded, and report what each service tier got. Needs no model.

    With a what-if option the same requests are simulated under that policy too. Exit code 1: the plans are not the
    same; 2: FILE is no trace.
    """
    import msgspec

    from ..engine.trace import TraceError
    from ..replay.read import read, what_if
    from ..replay.view import text
    from ..replay.whatif import Limits, Policy

    every = Limits(slots=slots, max_step_ms=max_step_ms, max_prefill_step_ms=max_prefill_step_ms)
    policy = msgspec.structs.replace(_policy(config), every=every, speculation=speculation)
    try:
        outcome = read(file)
        other = what_if(outcome.lives, policy) if policy != Policy() else None
    except OSError as exc:
        _stop(f"{file}: can't be read: {exc.strerror or exc}")
    except TraceError as exc:
        _stop(f"{file}: {exc}")
    if as_json:
        shown: dict[str, object] = {"same_plans": outcome.difference is None, "difference": outcome.difference}
        shown |= {"recorded": outcome.recorded, "what_if": other}
        typer.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
    else:
        typer.echo("same plans" if outcome.difference is None else f"other plans from {outcome.difference}")
        typer.echo(text(outcome.recorded, other))
    if outcome.difference is not None:
        raise typer.Exit(_DIFFERENT)


def _policy(config: Path | None) -> Policy:
    """Raises ConfigError."""
    from ..configfile import load_config
    from ..replay.whatif import Policy, policy_of

    return Policy() if config is None else policy_of(load_config(config))


def _stop(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(_USAGE)
