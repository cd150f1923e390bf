"""`twospeed chat`: talk to a running server from a terminal, or put one question to it in a pipe.

A client like any other: it knows the HTTP API and nothing of the server's insides.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from .chat_client import Answer, ChatError, Client, connect

KEY_ENV = "TWOSPEED_API_KEY"
URL = "http://127.0.0.1:8000"
_HELP = "/reset forgets what was said, /model [NAME] changes the model, Ctrl-C stops an answer, /exit or Ctrl-D ends"
# What a model writes must not drive the terminal: all control characters but tab and line feed are dropped.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


def register(app: typer.Typer) -> None:
    app.command()(chat)


def chat(
    prompt: Annotated[
        str | None, typer.Argument(help="Ask this and end; what is piped in is put after it.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Who answers.  [default: a ready model, smart before others]", show_default=False),
    ] = None,
    url: Annotated[str, typer.Option(help=f"The server; its key, if any, is taken from {KEY_ENV}.")] = URL,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system message.", show_default=False)] = None,
) -> None:
    """Chat with a running server. With PROMPT, or in a pipe: one answer on stdout, its figures on stderr."""
    piped = None if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().strip()
    try:
        with connect(url, os.environ.get(KEY_ENV)) as client:
            talk = Talk(client, model or _pick(client.models()), system)
            if prompt is None and piped is None:
                _converse(talk)
            elif question := "\n\n".join(part for part in (prompt, piped) if part):
                talk.ask(question)
            else:
                raise ChatError("there is no question: stdin is empty")
    except ChatError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _pick(models: list[dict[str, Any]]) -> str:
    """A model to talk to: one that is ready before one that is not, `smart` before others. Raises ChatError."""
    if not models:
        raise ChatError("the server has no models")
    best = min(models, key=lambda m: (not m.get("ready", True), m.get("role") != "smart"))
    return str(best["id"])


class Talk:
    """One conversation, and how it shows: answers on stdout, everything else on stderr."""

    def __init__(self, client: Client, model: str, system: str | None) -> None:
        from rich.console import Console

        self.client = client
        self.model = model
        self._head = [{"role": "system", "content": system}] if system else []
        self._said: list[dict[str, str]] = []
        self._notes = Console(stderr=True, markup=False, highlight=False, emoji=False)
        self._terminal = sys.stdout.isatty()

    def ask(self, question: str) -> None:
        """Show an answer and its figures, and remember both sides. Raises ChatError, KeyboardInterrupt."""
        asked = {"role": "user", "content": question}
        shown: list[str] = []

        def show(text: str) -> None:
            shown.append(text)
            sys.stdout.write(text.translate(_CONTROLS) if self._terminal else text)
            sys.stdout.flush()

        try:
            answer = self.client.stream(self.model, [*self._head, *self._said, asked], show)
        finally:
            if shown:
                sys.stdout.write("\n")
                sys.stdout.flush()
                # also what was stopped or broke off: the user saw it and may refer to it
                self._said += [asked, {"role": "assistant", "content": "".join(shown)}]
        self.note(figures(answer))

    def reset(self) -> None:
        self._said.clear()

    def note(self, text: str) -> None:
        self._notes.print(text.translate(_CONTROLS), style="dim", soft_wrap=True)


def figures(answer: Answer) -> str:
    """What an answer took, in one line."""
    usage, timings = answer.usage, answer.timings
    tokens = usage.get("completion_tokens", 0)
    rate = timings.get("predicted_per_second") or (
        (tokens - 1) / answer.decode_s if answer.decode_s > 0 and tokens > 1 else 0.0
    )
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    parts = [
        f"first token {answer.ttft_s:.2f} s",
        f"{rate:.1f} tok/s",
        f"{tokens} tokens",
        f"model {answer.model}",
        f"tier {answer.tier}",
        f"{cached} of {usage.get('prompt_tokens', 0)} prompt tokens cached",
    ]
    if answer.finish_reason == "length":
        parts.append("ended by its length limit")
    return ", ".join(parts)


def _converse(talk: Talk) -> None:
    """Questions from the keyboard until /exit or Ctrl-D."""
    import contextlib
    import importlib

    with contextlib.suppress(ImportError):  # some builds of Python have none: then there is no line editing
        importlib.import_module("readline")
    talk.note(f"{talk.model} answers. {_HELP}.")
    while True:
        try:
            line = _read_line()
        except EOFError:
            sys.stderr.write("\n")
            return
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            talk.note("/exit or Ctrl-D ends")
            continue
        if line == "/exit":
            return
        try:
            _do(talk, line)
        except KeyboardInterrupt:
            talk.note("stopped")
        except ChatError as error:
            talk.note(f"error: {error}")


def _read_line() -> str:
    if sys.stdout.isatty():
        return input("> ").strip()
    sys.stderr.write("> ")  # stdout is for answers
    sys.stderr.flush()
    return input().strip()


def _do(talk: Talk, line: str) -> None:
    command, _, argument = line.partition(" ")
    if command == "/reset":
        talk.reset()
        talk.note("forgotten")
    elif command == "/model":
        _choose(talk, argument.strip())
    elif command in ("/help", "/?"):
        talk.note(_HELP)
    elif command.startswith("/") and command[1:].isalpha():
        talk.note(f"unknown command {command}; {_HELP}")
    elif line:
        talk.ask(line)


def _choose(talk: Talk, wanted: str) -> None:
    models = talk.client.models()
    names = {name: m["id"] for m in models for name in (*m.get("aliases", []), m["id"])}
    if wanted in names:
        talk.model = names[wanted]
        talk.note(f"{talk.model} answers")
    else:
        problem = f"no model is named {wanted!r}; " if wanted else f"{talk.model} answers; "
        talk.note(f"{problem}there are: {', '.join(m['id'] for m in models)}")
