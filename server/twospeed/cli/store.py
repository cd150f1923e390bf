"""`twospeed pull`, `list`, `rm` and `verify`: the model store at the command line."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .config import ConfigOption

if TYPE_CHECKING:
    from ..config import Config, Model
    from ..models.job import Progress
    from ..models.store import Entry, Store

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", show_default=False)]
_USAGE = 2


def register(app: typer.Typer) -> None:
    app.command()(pull)
    app.command("list")(list_models)
    app.command()(rm)
    app.command()(verify)


def pull(names: NamesArgument = None, path: ConfigOption = None) -> None:
    """Fetch models, by default those that are loaded at start; a broken-off pull is resumed."""
    config, store = _open(path)
    chosen = _choose(config, names, lambda model: model.preload)
    drafts = [draft for name, _ in chosen if (draft := config.draft_of(name))]
    chosen = _choose(config, [*(name for name, _ in chosen), *drafts], _every) if drafts else chosen
    # A file that is wanted both as it is and requantised is then fetched once.
    chosen.sort(key=lambda item: item[1].quantize is not None)
    _each(chosen, store.ensure)


def verify(names: NamesArgument = None, path: ConfigOption = None) -> None:
    """Hash the files again, by default all that are here; a file that is wrong is not used again."""
    config, store = _open(path)
    here = {entry.name for entry in store.entries(config.models) if entry.path}
    _each([(name, model) for name, model in _choose(config, names, _every) if names or name in here], store.verify)


def rm(names: Annotated[list[str], typer.Argument(metavar="NAME...")], path: ConfigOption = None) -> None:
    """Remove models' files, and what there is of files that did not come whole."""
    from ..models.job import size_text

    config, store = _open(path)
    refused = False
    for name, model in _choose(config, names, _every):
        others = store.shares(name, config.models)
        removed = store.remove(name, model)
        if removed.freed:
            shared = f"; it was also the file of {', '.join(others)}" if others else ""
            typer.echo(f"{name}: removed, {size_text(removed.freed)} freed{shared}")
        elif removed.kept is None:
            typer.echo(f"{name}: nothing here to remove")
        if removed.kept is not None:
            typer.echo(f"{name}: {removed.kept} is your own file and stays", err=True)
            refused = True
    if refused:
        raise typer.Exit(1)


def list_models(
    path: ConfigOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object for each model.")] = False,
) -> None:
    """Show every model: whether its file is here, from where, and how large."""
    config, store = _open(path)
    entries = store.entries({n: m for n, m in config.models.items() if m.backend == "llama"})
    if as_json:
        typer.echo(json.dumps([_plain(entry) for entry in entries], indent=2))
    else:
        _print_table(entries)


def _open(path: Path | None) -> tuple[Config, Store]:
    from ..configfile import find_config, load_config
    from ..models.store import Store

    return load_config(find_config(path)), Store()


def _every(_: Model) -> bool:
    return True


def _choose(config: Config, names: list[str] | None, default: Callable[[Model], bool]) -> list[tuple[str, Model]]:
    """The models that `names`, or their aliases, stand for; without names those that `default` picks."""
    chosen: dict[str, Model] = {}
    for given in names or [name for name, model in config.models.items() if default(model)]:
        name = config.resolve(given)
        if name is None:
            typer.echo(f"no model is named {given!r}; there are: {', '.join(config.models)}", err=True)
            raise typer.Exit(_USAGE)
        chosen[name] = config.models[name]
    return [(name, model) for name, model in chosen.items() if model.backend == "llama"]


def _each(chosen: list[tuple[str, Model]], work: Callable[[str, Model, Callable[[Progress], None]], Path]) -> None:
    """Do `work` for one model after the other; one that fails does not stop the others."""
    from ..models.job import StoreError, size_text
    from .progress import Reporter

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # child processes are then ended, as for Ctrl-C
    failed = False
    with Reporter() as reporter:
        for name, model in chosen:
            try:
                file = work(name, model, reporter.show)
            except StoreError as error:
                reporter.note(str(error))
                failed = True
            except KeyboardInterrupt:
                reporter.note(f"{name}: interrupted")
                raise typer.Exit(130) from None
            else:
                reporter.result(f"{name}: ok, {size_text(file.stat().st_size)}, {file}")
    if failed:
        raise typer.Exit(1)


def _plain(entry: Entry) -> dict[str, object]:
    made_of = entry.quantized
    quantized = {"type": made_of.type, "from_sha256": made_of.from_sha256} if made_of else None
    return {**entry._asdict(), "quantized": quantized, "path": str(entry.path) if entry.path else None}


def _print_table(entries: list[Entry]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from ..models.job import size_text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("name", "role", "state", "size", "source", "requantised", "path"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "role", "state", "size"))
    for entry in entries:
        made_of = entry.quantized
        note = f"{made_of.type}, from sha256 {made_of.from_sha256[:12]}, not kept" if made_of else ""
        size = size_text(entry.size) if entry.size else ""
        path = str(entry.path or "")
        table.add_row(entry.name, entry.role, entry.state, size, entry.source or "", note, path)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = 1000  # nothing wraps: each model is one line for grep
    console.print(table)
