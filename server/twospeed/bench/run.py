"""`twospeed bench quick`: every measure for every model in one run, so that each figure has its baseline beside it.

A measure that fails is reported and the others go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from ..config import Config, Model
from ..machine import look
from ..models.store import Store
from ..routes import AUTO
from . import measures, report
from .child import bare_decode, serving, until_ready
from .client import BenchError, Endpoint
from .measures import ONE_TOKENS, Bare, Subject
from .results import Line, ModelReport, Report
from .setting import Voice, is_here, machine, versions
from .workloads import Prompts

_BOUND_S = 120.0  # a measure that takes longer says nothing any more

T = TypeVar("T")


def quick(config: Config, names: list[str], url: str | None, key: str | None, voice: Voice) -> Report:
    """Measure `names` on a server of our own for `config`, or on the one at `url`.

    Raises BenchError where nothing can be measured at all.
    """
    say, progress = voice
    with ExitStack() as stack:
        store = Store()
        files = {name: store.find(name, model) for name, model in config.models.items() if name in names}
        started = Report(machine(), versions(), datetime.now(UTC).isoformat(timespec="seconds"), url)
        for line in report.head_of(started.machine, started.versions, url):
            say(line)
        if url is None:
            for name in names:
                if config.models[name].backend == "llama" and files[name] is None:
                    raise BenchError(f"{name} is not here yet; get it with: twospeed pull {name}")
            progress("starting a server")
            endpoint = stack.enter_context(serving(config, names, key))
        else:
            endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"), key)
            files = files if is_here(endpoint) else {}
        known = {name: (path, config.models[name]) for name, path in files.items() if path}
        run = _Run(endpoint, names, known, started, voice)
        begun = time.monotonic()
        try:
            asyncio.run(run.all())
        finally:
            started.seconds = time.monotonic() - begun
            started.load_at_end = look().load
        say(report.summary_of(started))
        return started


class _Run:
    """One run: what it measures, and where results go."""

    def __init__(
        self,
        endpoint: Endpoint,
        names: list[str],
        files: dict[str, tuple[Path, Model]],
        into: Report,
        voice: Voice,
    ) -> None:
        self._endpoint = endpoint
        self._files = files
        self._report = into
        self._say, self._progress = voice
        prompts = Prompts()
        self._subjects = [Subject(endpoint, name, prompts) for name in names]

    async def all(self) -> None:
        await until_ready(self._endpoint, [s.model for s in self._subjects], self._progress)
        warm = [s for s in self._subjects if await self._measured(s.model, "warm-up", _true(s.warm_up()))]
        for subject in warm:
            await self._model(subject)
        if len(warm) == len(self._subjects) and len(warm) > 1:
            first, second = self._subjects[:2]
            self._say(f"{first.model} and {second.model} at the same time")
            seen = await self._measured("both", "streams of two models", measures.pair(first, second))
            if seen:
                self._report.pair = seen
                self._show(self._report.pair_lines, report.of_pair(seen))

    async def _model(self, subject: Subject) -> None:
        name, out = subject.model, ModelReport(lines=[], many=[])
        self._report.models[name] = out
        _, about = await self._endpoint.get(f"/v1/models/{name}")
        out.description = about.get("description") or ""
        self._say(f"{name}: {out.description}" if out.description else name)
        bare, why = self._bare(name, out.description)
        if one := await self._measured(name, "one stream", measures.one_stream(subject, bare)):
            out.one = one
            self._show(out.lines, report.of_one(one, ONE_TOKENS, why))
        for count in (4, 16):
            if many := await self._measured(name, f"{count} streams", measures.many_streams(subject, count)):
                out.many.append(many)
                self._show(out.lines, [report.of_many(many, out.one, about.get("slots"))])
        if prefill := await self._measured(name, "first token", measures.prefill(subject)):
            out.prefill = prefill
            self._show(out.lines, report.of_prefill(prefill))
        if turns := await self._measured(name, "conversation", measures.conversation(subject)):
            out.turns = turns
            self._show(out.lines, report.of_turns(turns))
        if arrival := await self._measured(name, "a long prompt beside a stream", measures.arrival(subject)):
            out.arrival = arrival
            self._show(out.lines, report.of_arrival(arrival))

    def _bare(self, name: str, description: str) -> tuple[Bare | None, str]:
        """The bare loop for a model, or why there is none."""
        if name not in self._files:
            no_weights = description == "fake"
            return None, "a fake model has no weights" if no_weights else "the model's file is not known here"
        path, model = self._files[name]

        async def bare(prompt: str, tokens: int) -> float:
            answer = await bare_decode(path, model, prompt, tokens)
            return float(answer["tokens"] / answer["decode_s"])

        return bare, ""

    async def _measured(self, name: str, what: str, work: Awaitable[T]) -> T | None:
        """The result of a measure; None when it failed, which is then reported."""
        self._progress(f"{name}: {what}")
        try:
            async with asyncio.timeout(_BOUND_S):
                return await work
        except TimeoutError:
            problem = f"took longer than {_BOUND_S:g} s"
        except BenchError as error:
            problem = str(error)
        text = f"{name}: {what}: {problem}"
        self._report.errors.append(text)
        self._say(f"  failed: {text}")
        return None

    def _show(self, into: list[Line], lines: list[Line]) -> None:
        into += lines
        for line in lines:
            self._say(report.text_of(line))


async def _true(work: Awaitable[None]) -> bool:
    await work
    return True


def choose(config: Config, names: list[str] | None) -> list[str]:
    """The models to measure: those named, or what the configuration loads at the start. Raises BenchError."""
    chosen: dict[str, None] = {}
    for given in names or [name for name, model in config.models.items() if model.preload]:
        name = config.resolve(given)
        if name is None:
            raise BenchError(f"no model is named {given!r}; there are: {', '.join(config.models)}")
        chosen[name] = None
    if not chosen:
        raise BenchError("no model is loaded at the start; name one with --models")
    return list(chosen)


async def served(url: str, key: str | None) -> list[str]:
    """The models that a running server has ready. Raises BenchError."""
    status, answer = await Endpoint(url.rstrip("/").removesuffix("/v1"), key).get("/v1/models")
    if status != 200:
        raise BenchError(f"{url}: {answer.get('error', {}).get('message', f'status {status}')}")
    return [model["id"] for model in answer["data"] if model.get("ready", True) and model["id"] != AUTO]
