"""`twospeed keys`: make an API key. The key is printed once and kept nowhere; models.yaml gets its sha256."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..access import ApiKey

_BYTES = 24  # 192 bits

_app = typer.Typer(no_args_is_help=True, help="Make API keys.")


def register(app: typer.Typer) -> None:
    app.add_typer(_app, name="keys")


@_app.callback()
def _keys() -> None:
    pass


@_app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is; models.yaml and the logs know it by this name.")],
    tiers: Annotated[
        str | None,
        typer.Option(help="Service tiers it may ask for, as in ultrafast,default.  [default: all]", show_default=False),
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Models it may use, as in fast,smart.  [default: all]", show_default=False)
    ] = None,
    default_tier: Annotated[
        str | None, typer.Option(help="What a request that names no tier gets.  [default: default]", show_default=False)
    ] = None,
) -> None:
    """Print a new key, once, and what to add to models.yaml for it."""
    import hashlib

    from pydantic import ValidationError

    from ..access import ApiKey
    from ..yamlfile import dump

    key = f"ts-{secrets.token_urlsafe(_BYTES)}"
    entry: dict[str, Any] = {"name": name, "sha256": hashlib.sha256(key.encode()).hexdigest()}
    if models is not None:
        entry["models"] = _list(models)
    if tiers is not None:
        entry["service_tiers"] = _list(tiers)
    if default_tier is not None:
        entry["default_tier"] = default_tier
    elif tiers is not None and "default" not in entry["service_tiers"] and entry["service_tiers"]:
        entry["default_tier"] = entry["service_tiers"][0]
    try:
        checked = ApiKey.model_validate(entry)
    except ValidationError as exc:
        typer.echo("\n".join(_problems(exc)), err=True)
        raise typer.Exit(2) from None
    typer.echo(f"The key, shown only now: {key}\n", err=True)
    typer.echo("Add to models.yaml, then `twospeed reload`:\n", err=True)
    typer.echo(dump(_block(entry, checked)), nl=False)


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _block(entry: dict[str, Any], key: ApiKey) -> dict[str, Any]:
    """What models.yaml needs: the entry, and a place in the preview for one that is to use ultrafast."""
    block: dict[str, Any] = {"server": {"api_keys": [entry]}}
    if "ultrafast" in (key.service_tiers or ()):
        block["preview"] = {"ultrafast": [key.name]}
    return block


def _problems(error: Any) -> list[str]:
    options = {"service_tiers": "--tiers", "default_tier": "--default-tier", "models": "--models", "name": "NAME"}
    lines = []
    for entry in error.errors(include_url=False, include_input=False):
        where = options.get(str(entry["loc"][0]), str(entry["loc"][0])) if entry["loc"] else "--default-tier"
        lines.append(f"{where}: {entry['msg'].removeprefix('Value error, ').removeprefix('default_tier: ')}")
    return lines
