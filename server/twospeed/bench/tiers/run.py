"""`twospeed bench tiers`: the grid and the measures beside it in one run, each baseline minutes from its figure.

A measure that fails is reported and the others go on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from ...config import Config, Model
from ...machine import look
from ...models.store import Store
from .. import report as lines_of
from ..child import bare_decode, serving, until_ready
from ..client import BenchError, Endpoint
from ..results import Line
from ..setting import Voice, is_here, machine, versions
from ..workloads import Prompts
from . import figures, verdicts
from .asking import ask
from .dialect import Dialect, known_server
from .extras import Extras, plain
from .grid import Grid, Plan
from .results import TIERS, Sample, TiersReport
from .workloads import WORKLOADS, Task, Workload, opening

_BURST = 8
_WARM_TOKENS = 8

T = TypeVar("T")


def tiers(config: Config, model: str, url: str | None, key: str | None, *, plan: Plan, voice: Voice) -> TiersReport:
    """Measure `model` on a server of our own for `config`, or on the one at `url`.

    Raises BenchError where nothing can be measured at all.
    """
    with ExitStack() as stack:
        entry = config.models.get(config.resolve(model) or model)
        path = Store().find(model, entry) if entry else None
        report = TiersReport(machine(), versions(), datetime.now(UTC).isoformat(timespec="seconds"), model, url)
        report.first_token_s = plan.bounds.first_s
        for line in lines_of.head_of(report.machine, report.versions, url):
            voice.say(line)
        if url is None:
            assert entry is not None
            if entry.backend == "llama" and path is None:
                raise BenchError(f"{model} is not here yet; get it with: twospeed pull {model}")
            voice.progress("starting a server")
            endpoint = stack.enter_context(serving(config, [model], key))
        else:
            endpoint = Endpoint(url.rstrip("/").removesuffix("/v1"), key)
        here = (path, entry) if path and entry and is_here(endpoint) else None
        begun = time.monotonic()
        try:
            asyncio.run(_Run(endpoint, here, plan, report, voice).all())
        except KeyboardInterrupt:  # a run takes long: what was measured so far is worth keeping
            report.errors.append("interrupted")
            report.interrupted = True
            conclude(report)
        finally:
            report.seconds = time.monotonic() - begun
            report.load_at_end = look().load
        voice.say(verdicts.summary_of(report))
        return report


class _Run:
    """One run: what it measures, and where results go."""

    def __init__(
        self, endpoint: Endpoint, here: tuple[Path, Model] | None, plan: Plan, into: TiersReport, voice: Voice
    ) -> None:
        self._endpoint = endpoint
        self._here = here
        self._plan = plan
        self._report = into
        self._say, self._progress = voice
        self._prompts = Prompts()
        self._said: set[str] = set()

    async def all(self) -> None:
        own = await known_server(self._endpoint)
        model, slots, context = self._report.model, None, None
        if own:
            await until_ready(self._endpoint, [model], self._progress)
            _, about = await self._endpoint.get(f"/v1/models/{model}")
            self._report.description = about.get("description") or ""
            slots, context = about.get("slots"), about.get("context_length")
        else:
            self._note("not a twospeed server: only OpenAI's fields are sent, prompts differ between the tiers")
        dialect = Dialect(self._endpoint, model, own, self._note)
        await self._warm_up(dialect)
        grid = Grid(dialect, self._plan, self._prompts, slots, self._progress)
        extras = Extras(dialect, self._prompts, self._plan.bounds, context)
        # The machine may change under a long run: what runs alone is measured at its start and at its end.
        first = math.ceil(self._plan.repeat / 2)
        await self._plain()
        await self._alone(grid, range(first))
        if self._plan.extras:
            await self._extras(extras)
        for load in self._plan.loads:
            await self._under(grid, load)
        if first < self._plan.repeat:
            await self._alone(grid, range(first, self._plan.repeat))
            await self._plain()
        self._conclude()

    async def _warm_up(self, dialect: Dialect) -> None:
        """One short answer in each tier: a server that can't give these can't be measured."""
        for tier in TIERS:
            task = Task(f"[{self._prompts.mark()}] You are brief.", ("Count from one to twenty.",), _WARM_TOKENS)
            seen = await ask(dialect, dialect.body(opening(task), tier, task.max_tokens), self._plan.bounds)
            if seen.result is None:
                raise BenchError(f"no token within {self._plan.bounds.first_s:g} s from an idle server, as {tier}")
            if seen.result.served != tier:
                self._note(f"asked {tier}, served {seen.result.served or 'not told'}, on the idle server")

    async def _alone(self, grid: Grid, rounds: range) -> None:
        if samples := await self._measured("alone", grid.alone(rounds)):
            self._report.samples += samples
            self._show(cell_lines(self._report, 0))

    async def _under(self, grid: Grid, load: int) -> None:
        self._progress(f"load {load}: starting the background")
        loaded = await self._measured(f"load {load}", grid.under(load))
        if loaded is None:
            return
        self._report.samples += loaded.samples
        for remark in loaded.remarks:
            self._note(remark)
        if loaded.gap_ms is not None:
            self._report.step_ms[load] = loaded.gap_ms
        self._show(cell_lines(self._report, load))

    async def _plain(self) -> None:
        """The bare loop with each workload's prompt, where the model's file is here."""
        if self._here is None:
            return
        path, model = self._here

        async def bare(prompt: str, tokens: int) -> float:
            answer = await bare_decode(path, model, prompt, tokens)
            return float(answer["tokens"] / answer["decode_s"])

        for workload in self._plan.workloads:
            rate = await self._measured(f"{workload.name}: bare loop", plain(bare, workload, self._prompts.mark()))
            if rate is not None:
                self._report.plain.setdefault(workload.name, []).append(rate)

    async def _extras(self, extras: Extras) -> None:
        self._progress("16 default streams")
        self._report.conserved = await self._measured("16 default streams", extras.conserved())
        for prompts in (1, _BURST):
            self._progress(f"{prompts} long prompts arrive beside an ultrafast stream")
            if gaps := await self._measured(f"{prompts} long prompts arrive", extras.gaps(prompts)):
                self._report.gaps.append(gaps)
        self._progress("several ultrafast streams at once")
        self._report.seats = await self._measured("several ultrafast streams", extras.seats())

    async def _measured(self, what: str, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except BenchError as error:
            text = f"{what}: {error}"
        self._report.errors.append(text)
        self._say(f"  failed: {text}")
        return None

    def _note(self, text: str) -> None:
        if text not in self._report.notes:
            self._report.notes.append(text)
            self._say(f"  note: {text}")

    def _conclude(self) -> None:
        """Say what was not said yet: until now a cell's own figures, at the end also how cells compare."""
        conclude(self._report)
        self._show(self._report.lines)

    def _show(self, lines: Sequence[Line]) -> None:
        for text in map(lines_of.text_of, lines):
            if text not in self._said:
                self._said.add(text)
                self._say(text)


def cell_lines(report: TiersReport, load: int) -> list[Line]:
    """What is known of one load before the others are measured."""
    conclude(report)
    here = [cell for cell in report.cells if cell.load == load]
    beside = [line for cell in here if (line := verdicts.of_background(cell))]
    return [verdicts.of_cell(cell) for cell in here] + beside


def conclude(report: TiersReport) -> None:
    """Make the figures and the lines of all samples. Pure but for `report`."""
    report.cells, report.comparisons, report.lines = [], [], []
    for workload in dict.fromkeys(s.workload for s in report.samples):
        of_workload = [s for s in report.samples if s.workload == workload]
        report.lines += _of_workload(report, workload, of_workload)
    if report.conserved:
        report.lines.append(verdicts.of_conserved(report.conserved))
    report.lines += [verdicts.of_gaps(gaps) for gaps in report.gaps]
    if report.seats:
        report.lines += verdicts.of_seats(report.seats)


def _of_workload(report: TiersReport, workload: str, samples: Sequence[Sample]) -> list[Line]:
    chars = figures.chars_per_token(samples)
    lines: list[Line] = []
    alone = None
    for load in sorted({s.load for s in samples}):
        here = [s for s in samples if s.load == load]
        default, ultrafast = (
            figures.cell(workload, load, tier, [s for s in here if s.tier == tier], chars) for tier in TIERS
        )
        alone = ultrafast if load == 0 else alone
        report.cells += [default, ultrafast]
        compared = figures.compare(default, ultrafast, alone, here)
        report.comparisons.append(compared)
        lines += [verdicts.of_cell(default), verdicts.of_cell(ultrafast)]
        lines += verdicts.of_comparison(compared, default, ultrafast, alone, report.step_ms.get(load))
        lines += [line for cell in (default, ultrafast) if (line := verdicts.of_background(cell))]
        if load == 0 and (rates := report.plain.get(workload)):
            lines.append(verdicts.of_plain(workload, rates, ultrafast))
    return lines


def chosen(names: Sequence[str]) -> list[Workload]:
    """Workloads by name. Raises BenchError."""
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise BenchError(f"no workload is named {unknown[0]!r}; there are: {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in names]
