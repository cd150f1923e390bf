"""The scheduler once more on what was recorded: it must plan the same.

A Recorder is given the recorded events, and what it tells of them is compared with them, each before it takes effect.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from itertools import zip_longest

import msgspec

from ..engine import trace
from ..engine.cost import StepCost
from ..engine.kv import KvCache
from ..engine.lanes import Limits, Sequence, Step
from ..engine.recorder import Recorder


class AsTheyAre:
    """Names of what has a pseudonym already."""

    def namespace(self, namespace: str) -> int:
        return int(namespace)

    def tokens(self, model: str, namespace: str, tokens: Seq[int]) -> list[int]:
        return list(tokens)


class _DifferentError(Exception):
    pass


class Exact:
    """Feed it a trace; `difference` is the first plan that is not the recorded one, in words."""

    def __init__(self) -> None:
        self.difference: str | None = None
        self.steps = 0
        self._expected: trace.Told = trace.Idle(0.0)
        self._begun()

    def feed(self, line: int, event: trace.Event) -> None:
        if isinstance(event, trace.Header):
            self._begun()
        elif self.difference is None:
            self._expected, self._told = event, False
            try:
                self._again(event)
                if not self._told:
                    raise _DifferentError(f"{_name(event)} was recorded, and now there is none")
            except _DifferentError as difference:
                self.difference = f"line {line}, after {self.steps} steps: {difference}"

    def _begun(self) -> None:
        self._sequences: dict[int, Sequence] = {}
        self._scheduler = Recorder(self._tell, AsTheyAre(), lambda: self._expected.at)
        self._told = False

    def _tell(self, event: trace.Told) -> None:
        if event != self._expected:
            raise _DifferentError(_apart(self._expected, event))
        self._told = True

    def _again(self, event: trace.Told) -> None:
        scheduler, sequences = self._scheduler, self._sequences
        match event:
            case trace.ModelAdded():
                add_model(scheduler, event)
            case trace.Shared(_, shares):
                scheduler.share(shares)
            case trace.Added(number):
                leader = None if event.leader is None else sequences[event.leader]
                sequences[number] = sequence_of(event, leader)
                scheduler.add(sequences[number])
            case trace.Released(number, _, keep, cancelled):
                over = scheduler.cancel if cancelled else scheduler.release
                over(sequences.pop(number), keep=keep)
            case trace.RestoreFailed(number):
                scheduler.restore_failed(sequences[number])
            case trace.Stepped():
                self._step(event)
            case trace.Idle(at) | trace.Restored(_, at):
                scheduler.plan(at)

    def _step(self, event: trace.Stepped) -> None:
        step = self._scheduler.plan(event.at)
        if step is None:
            raise _DifferentError(f"{_name(event)} was recorded, and now there is nothing to do")
        self._scheduler.commit(step, event.ms, event.at, _written(step, event))
        self.steps += 1


def add_model(scheduler: Recorder, event: trace.ModelAdded) -> None:
    limits = Limits(**{name: getattr(event, name) for name in Limits._fields})
    kv = KvCache(event.capacity, event.seqs, partial_prefix=event.partial_prefix)
    scheduler.add_model(event.model, StepCost(event.curves), kv, limits)


def sequence_of(event: trace.Added, leader: Sequence | None) -> Sequence:
    prompt, prediction = event.prompt, event.prediction
    if prompt is None:
        if leader is None:
            raise ValueError("it has no prompt")
        prompt, prediction = leader.tokens[: leader.prompt_length], leader.prediction
    return Sequence(
        id=str(event.sequence),
        model=event.model,
        tokens=list(prompt),
        max_new=event.max_new,
        tier=event.tier,
        namespace=str(event.namespace),
        leader=leader,
        speculation=event.speculation,
        prediction=list(prediction),
        arrived=event.at,
    )


def _written(step: Step, event: trace.Stepped) -> list[list[int]]:
    """What the recorded step wrote, for `step`. Where that is another one, anything: it is found different."""
    written: list[list[int]] = []
    for part, recorded in zip_longest(step.parts, event.parts):
        if part is not None and part.sampled:
            tokens = (recorded and recorded.written) or []
            if recorded is not None and recorded.written is not None and not 0 < len(tokens) <= 1 + len(recorded.draft):
                raise ValueError(f"{len(tokens)} tokens came of a draft of {len(recorded.draft)}")
            written.append(tokens)
    return written


def _apart(recorded: trace.Told, told: trace.Told) -> str:
    """The first thing in which they differ."""
    if type(recorded) is not type(told):
        return f"{_name(recorded)} was recorded, and now there is {_name(told)}"
    for field in recorded.__struct_fields__:
        before, now = getattr(recorded, field), getattr(told, field)
        if before != now:
            name = field
            if field == "parts":
                name, (before, now) = "a part", next(pair for pair in zip_longest(before, now) if pair[0] != pair[1])
            return f"{_name(recorded)}: {name} was {_short(before)}, and now is {_short(now)}"
    raise AssertionError("they are equal")


def _short(value: object) -> str:
    if isinstance(value, trace.Part):
        tokens = "" if value.written is None else f", {len(value.written)} tokens written"
        return f"{value.rows} rows and {len(value.draft)} drafted of sequence {value.sequence}{tokens}"
    text = "nothing" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) < 100 else f"{text[:100]}..."


def _name(event: trace.Told) -> str:
    match event:
        case trace.Stepped(model, tier):
            return f"a step of {model} for {tier}"
        case trace.Idle():
            return "nothing to do"
        case trace.Restored(number):
            return f"sequence {number} put back"
    return f"{event.__struct_config__.tag}"
