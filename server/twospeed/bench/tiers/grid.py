"""The grid: every workload in both tiers under one load, in turns, so that a machine's moods hit both alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..client import BenchError
from ..workloads import Prompts
from .asking import Bounds, Seen, ask
from .background import Background
from .dialect import Dialect
from .figures import tokens_of
from .results import TIERS, Sample, Tier
from .workloads import Message, Task, Workload, opening

_WARM_S = 120.0
_CHARS = 4.0  # a token's, for the background's share beside a stream that was cut

Window = tuple[float, float]


class Plan(NamedTuple):
    """What to measure. `before_s`: how long the background is watched before each measured task."""

    workloads: list[Workload]
    loads: list[int]
    repeat: int
    bounds: Bounds = Bounds()
    before_s: float = 3.0
    extras: bool = True


class Loaded(NamedTuple):
    """What one load gave: its samples, the usual gap of the background's streams, and remarks."""

    samples: list[Sample]
    gap_ms: float | None
    remarks: list[str]


class Grid:
    """`done` hears of each workload of each round as soon as it is measured in both tiers."""

    def __init__(
        self,
        dialect: Dialect,
        plan: Plan,
        prompts: Prompts,
        slots: int | None,
        done: Callable[[str], None],
    ) -> None:
        self._dialect = dialect
        self._plan = plan
        self._prompts = prompts
        self._slots = slots
        self._done = done

    async def alone(self, rounds: Iterable[int]) -> list[Sample]:
        return [sample for sample, _, _ in await self._rounds(0, rounds)]

    async def under(self, load: int) -> Loaded:
        """With so many default streams beside it. What they got is known once they have ended."""
        background = Background(self._dialect, load, self._prompts.mark())
        remarks = []
        async with background:
            wanted = min(load, self._slots or load)
            warm = await background.warm(wanted, min(_WARM_S, 2 * self._plan.bounds.first_s))
            if warm < load:
                remarks.append(f"load {load}: {warm} of the {load} streams had tokens when measuring began")
            measured = await self._rounds(load, range(self._plan.repeat))
        for sample, before, during in measured:
            if sample.error is None:
                sample.background = background.span(before, during, tokens_of(sample, _CHARS))
        if background.refused:
            remarks.append(
                f"load {load}: background streams were refused or broke {background.refused} times: "
                f"{background.problem}"
            )
        return Loaded([sample for sample, _, _ in measured], background.gap_ms(), remarks)

    async def _rounds(self, load: int, rounds: Iterable[int]) -> list[tuple[Sample, Window, Window]]:
        measured = []
        for number in rounds:
            for workload in self._plan.workloads:
                mark = self._prompts.mark()
                order = TIERS if number % 2 == 0 else TIERS[::-1]
                seen = []
                for tier in order:
                    shared = self._dialect.prompts_are_reusable and not _keeps(workload, number)
                    own_mark = mark if shared else self._prompts.mark()
                    for item, task in enumerate(workload.tasks(number, own_mark)):
                        blank = Sample(workload.name, load, tier, number, item, 0.0, same_prompt=shared)
                        seen += await self._task(task, blank)
                measured += seen
                self._done(_short(workload, load, number, [sample for sample, _, _ in seen]))
        return measured

    async def _task(self, task: Task, blank: Sample) -> list[tuple[Sample, Window, Window]]:
        begun = time.perf_counter()
        if blank.load:
            await asyncio.sleep(self._plan.before_s)
        before = (begun, time.perf_counter())
        messages: list[Message] = opening(task)
        out: list[tuple[Sample, Window, Window]] = []
        for turn in range(len(task.turns)):
            if turn:
                messages.append({"role": "user", "content": task.turns[turn]})
            sample, during = await self._turn(task, messages, blank, turn)
            out.append((sample, before, during))
            if sample.error is not None or not sample.text:
                break
            messages.append({"role": "assistant", "content": sample.text})
        return out

    async def _turn(self, task: Task, messages: list[Message], blank: Sample, turn: int) -> tuple[Sample, Window]:
        body = self._dialect.body(
            messages,
            blank.tier,
            task.max_tokens,
            prediction=task.prediction,
            fixed=task.fixed,
            cache=task.keeps_prefix,
        )
        item = blank.item + turn
        begun = time.perf_counter()
        try:
            seen = await ask(self._dialect, body, self._plan.bounds)
        except BenchError as error:
            end = time.perf_counter()
            sample = Sample(blank.workload, blank.load, blank.tier, blank.round, item, 1000 * (end - begun))
            sample.error = str(error)
            return sample, (begun, end)
        return sample_of(seen, blank, item), (seen.sent, seen.end)


def _keeps(workload: Workload, number: int) -> bool:
    return any(task.keeps_prefix for task in workload.tasks(number, ""))


def sample_of(seen: Seen, blank: Sample, item: int) -> Sample:
    """What one request gave. `blank` says of which cell it is."""
    sample = Sample(
        workload=blank.workload,
        load=blank.load,
        tier=blank.tier,
        round=blank.round,
        item=item,
        waited_ms=round(1000 * (seen.end - seen.sent), 2),
        same_prompt=blank.same_prompt,
        whole=seen.whole,
    )
    if (result := seen.result) is None:
        return sample
    sample.at_ms = [round((at - result.sent) * 1000, 2) for at in result.times]
    sample.text = result.text
    sample.served = result.served
    sample.timings = result.timings
    if "completion_tokens" in result.usage:
        usage = result.usage
        sample.told = True
        sample.tokens = usage["completion_tokens"]
        sample.prompt_tokens = usage.get("prompt_tokens")
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        details = usage.get("completion_tokens_details") or {}
        sample.accepted_prediction = details.get("accepted_prediction_tokens")
        sample.rejected_prediction = details.get("rejected_prediction_tokens")
    return sample


def _short(workload: Workload, load: int, number: int, samples: list[Sample]) -> str:
    """One line on a round, for a person who waits."""
    parts = [tier_text(tier, [s for s in samples if s.tier == tier]) for tier in TIERS]
    return f"{workload.title}, load {load}, round {number + 1}: " + "; ".join(parts)


def tier_text(tier: Tier, samples: list[Sample]) -> str:
    if failed := [s.error for s in samples if s.error]:
        return f"{tier} failed: {failed[0]}"
    if silent := [s for s in samples if not s.at_ms]:
        return f"{tier} no token within {silent[0].waited_ms / 1000:.1f} s"
    seconds = sum(s.at_ms[-1] for s in samples) / 1000
    return f"{tier} first token {samples[0].at_ms[0]:.0f} ms, all {seconds:.1f} s"
