"""The scheduler's promises, on random traces of adds, cancels and step times over one to three models.

`Device` does what core.Core does with FakeRunners, on a clock of its own, and checks every step on the way. The
fake computes from its cache alone, so text that is right means that rows, positions and prefixes were.
"""

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.config import Model
from twospeed.engine.cost import Curves, StepCost
from twospeed.engine.kv import Copy, KvCache
from twospeed.engine.lanes import Lane, Limits, Sequence, Step
from twospeed.engine.runner.base import Row
from twospeed.engine.runner.fake import FakeRunner
from twospeed.engine.scheduler import Scheduler

_BOS, _END, _USER, _ASSISTANT = 256, 257, 262, 263
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)


class Setup(NamedTuple):
    """One model: `one_ms` for a row, stairs of `tile` rows, `per_output` ms for logits."""

    capacity: int = 4096
    slots: int = 4
    max_rows: int = 64
    max_step_ms: float | None = None
    max_prefill_step_ms: float = 600
    one_ms: float = 10
    tile: int = 4
    per_output: float = 0.5

    def curves(self) -> Curves:
        last = {n: self.one_ms * (1 + 0.6 * ((n - 1) // self.tile)) for n in _SIZES}
        return Curves(last=last, every={n: last[n] + (n - 1) * self.per_output for n in _SIZES if n <= 16})


class Device:
    def __init__(self, setups: list[Setup]) -> None:
        self.now = 0.0
        self.scheduler = Scheduler()
        self.runners: dict[str, FakeRunner] = {}
        self.plans: list[tuple[Any, ...]] = []
        self.finished: list[Sequence] = []
        self.added: list[Sequence] = []
        self.admitted: dict[str, list[int]] = {}
        self.preempted = 0
        self.served: dict[str, float] = {}
        self._longest_ms = 0.0
        self._level: dict[tuple[str, str], tuple[float, float]] = {}  # both models' time when both became busy
        self._missed: dict[int, int] = {}
        for i, setup in enumerate(setups):
            self.add_model(f"m{i}", setup)

    def add_model(self, name: str, setup: Setup) -> None:
        seqs = 2 * setup.slots + 2
        runner = FakeRunner(None, Model(backend="fake"), max_seqs=seqs)
        runner.info = runner.info._replace(kv_tokens=setup.capacity, max_rows=setup.max_rows)
        self.runners[name] = runner
        limits = Limits(setup.slots, setup.max_rows, setup.max_step_ms, setup.max_prefill_step_ms)
        self.scheduler.add_model(name, StepCost(setup.curves()), KvCache(setup.capacity, seqs), limits)
        self.admitted[name] = []
        self.served[name] = 0.0

    def lane(self, name: str = "m0") -> Lane:
        return self.scheduler.lanes[name]

    def add(
        self, tokens: list[int], max_new: int, model: str = "m0", namespace: str = "", leader: Sequence | None = None
    ) -> Sequence:
        number = str(len(self.added))
        sequence = Sequence(number, model, list(tokens), max_new, namespace, leader, self.now)
        self.added.append(sequence)
        self.scheduler.add(sequence)
        return sequence

    def step(self, slowness: float = 1.0) -> Step | None:
        busy = {name for name, lane in self.scheduler.lanes.items() if lane.running or lane.waiting}
        started = [s for s in self.added if s.started is not None]
        was_running = [s for lane in self.scheduler.lanes.values() for s in lane.running]
        step = self.scheduler.plan(self.now)
        self.preempted += sum(s.kv is None for s in was_running)
        if step is None:
            assert not busy
            return None
        self._check_admission(started)
        self._check_size(step)
        self.plans.append((step.model, step.ops, step.rows, step.decode_rows, step.outputs, step.predicted_ms))
        runner, lane = self.runners[step.model], self.lane(step.model)
        for op in step.ops:
            if isinstance(op, Copy):
                runner.copy(op.source, op.target, op.length)
            else:
                runner.trim(op.seq, op.length)
        tokens = [int(row.argmax()) for row in runner.run(step.rows)]
        self._check_turns(step, lane)
        ms = step.predicted_ms * slowness
        self.now += ms / 1000
        self.scheduler.commit(step, ms, self.now, tokens)
        self._check_shares(step.model, ms, busy)
        for pick in step.picks:
            s = pick.sequence
            if pick.sampled and (s.tokens[-1] == _END or s.generated >= s.max_new):
                self.scheduler.release(s)
                self.finished.append(s)
        return step

    def drain(self, most: int = 4000) -> None:
        for _ in range(most):
            if self.step() is None:
                return
        raise AssertionError("does not come to an end")

    def run_for(self, ms: float) -> None:
        until = self.now + ms / 1000
        while self.now < until and self.step() is not None:
            pass

    def _check_admission(self, started: list[Sequence]) -> None:
        """First come, first served; those that were put back come before those that never ran."""
        for name, lane in self.scheduler.lanes.items():
            new = [int(s.id) for s in self.added if s.model == name and s.started is not None and s not in started]
            self.admitted[name] += new
            assert self.admitted[name] == sorted(self.admitted[name])
            assert all(i > int(self.admitted[name][-1]) for i in [int(s.id) for s in lane.waiting if s.started is None])
            ages = [int(s.id) for s in lane.waiting]
            assert ages == sorted(ages)
            assert len(lane.running) <= lane.limits.slots
            assert lane.kv.hot_cells <= lane.kv.used <= lane.kv.capacity

    def _check_size(self, step: Step) -> None:
        lane = self.lane(step.model)
        limits = lane.limits
        assert 0 < len(step.rows) <= limits.max_rows
        assert len({id(p.sequence) for p in step.picks}) == len(step.picks)
        load = (len(step.rows), sum(row.logits for row in step.rows), sum(row.pos for row in step.rows))
        assert (len(step.rows), step.outputs, step.context) == load
        assert step.predicted_ms == lane.cost.ms(*load)
        if len(step.rows) == 1:
            return  # the smallest step there is
        decoding = [p.sequence.computed for p in step.picks if p.sequence.decoding]
        limit = limits.max_prefill_step_ms
        if any(other.streaming for other in self.scheduler.lanes.values()):
            limit = limits.max_step_ms or math.inf
            if limits.max_step_ms is None:
                n = max(1, len(decoding))
                decode = lane.cost.ms(n, n, sum(decoding))
                limit = max(decode, min(6 * decode, max(6 * lane.cost.ms(1, 1), 250)))
        assert step.predicted_ms <= limit * (1 + 1e-9)

    def _check_turns(self, step: Step, lane: Lane) -> None:
        """Whoever decodes gets a row at least every second round of single rows."""
        ran = {id(p.sequence) for p in step.picks}
        for s in lane.running:
            missed = 0 if id(s) in ran or not s.decoding else self._missed.get(id(s), 0) + 1
            self._missed[id(s)] = missed
            assert missed <= 2 * lane.limits.slots + 1

    def _check_shares(self, model: str, ms: float, busy: set[str]) -> None:
        """While two models both have work, their times differ by a few steps at most."""
        for pair in itertools.combinations(sorted(self.served), 2):
            if not busy.issuperset(pair):
                self._level.pop(pair, None)
            elif pair not in self._level:
                self._level[pair] = (self.served[pair[0]], self.served[pair[1]])
        self.served[model] += ms
        self._longest_ms = max(self._longest_ms, ms)
        for (a, b), (from_a, from_b) in self._level.items():
            apart = (self.served[a] - from_a) - (self.served[b] - from_b)
            assert abs(apart) <= 2.01 * self._longest_ms


def alone(tokens: list[int], max_new: int) -> list[int]:
    """What the fake model writes when nobody else is there."""
    runner = FakeRunner(None, Model(backend="fake"), max_seqs=1)
    tokens = list(tokens)
    logits = runner.run([Row(0, t, i, i == len(tokens) - 1) for i, t in enumerate(tokens)])
    output: list[int] = []
    while True:
        output.append(int(logits[0].argmax()))
        if output[-1] == _END or len(output) == max_new:
            return output
        logits = runner.run([Row(0, output[-1], len(tokens) + len(output) - 1, True)])


def chat(text: bytes) -> list[int]:
    return [_USER, *text, _END, _ASSISTANT]


_prompt = st.one_of(
    st.binary(min_size=0, max_size=12).map(chat),
    st.lists(st.sampled_from(b"ab"), min_size=1, max_size=40),
    st.integers(1, 60).map(lambda n: [_BOS, *(b"abcdefgh" * 8)[:n]]),
)
_add = st.tuples(
    st.just("add"),
    st.integers(0, 2),  # model
    _prompt,
    st.integers(1, 20),  # max_new
    st.sampled_from(["", "", "bob"]),
    st.integers(0, 2),  # siblings
)
_event = st.one_of(
    _add,
    _add,
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("step"), st.integers(1, 12), st.sampled_from([0.3, 1.0, 1.0, 4.0])),
)
_setup = st.builds(
    Setup,
    capacity=st.sampled_from([90, 120, 4096]),
    slots=st.integers(1, 5),
    max_rows=st.sampled_from([8, 64, 512]),
    max_step_ms=st.sampled_from([None, None, 5, 40]),
    max_prefill_step_ms=st.sampled_from([60, 600]),
    one_ms=st.sampled_from([2, 10, 60]),
    tile=st.sampled_from([1, 4, 16]),
    per_output=st.sampled_from([0.0, 0.5, 3.0]),
)
_setups = st.lists(_setup, min_size=1, max_size=3)
_trace = st.lists(_event, max_size=16)


def play(setups: list[Setup], trace: list[tuple[Any, ...]]) -> Device:
    device = Device(setups)
    for event in trace:
        match event:
            case ("add", number, prompt, max_new, namespace, siblings):
                model = f"m{number % len(setups)}"
                leader = None
                for _ in range(1 + siblings):
                    sequence = device.add(prompt, max_new, model, namespace, leader)
                    leader = leader or sequence
            case ("cancel", number) if number < len(device.added):
                device.scheduler.release(device.added[number])
            case ("step", times, slowness):
                for _ in range(times):
                    device.step(slowness)
    device.drain()
    return device


@given(_setups, _trace)
@settings(deadline=None, max_examples=120)
def test_any_trace_ends_with_the_text_that_each_sequence_alone_would_have(
    setups: list[Setup], trace: list[tuple[Any, ...]]
) -> None:
    device = play(setups, trace)
    assert device.scheduler.idle
    assert all(s.done for s in device.added)
    for s in device.finished:
        prompt, output = s.tokens[: s.prompt_length], s.tokens[s.prompt_length :]
        assert output == alone(prompt, s.max_new)
        assert s.cached < s.prompt_length
    for lane in device.scheduler.lanes.values():
        assert not lane.running
        assert lane.kv.hot_cells == 0


@given(_setups, _trace)
@settings(deadline=None, max_examples=30)
def test_the_same_trace_gives_the_same_plans(setups: list[Setup], trace: list[tuple[Any, ...]]) -> None:
    assert play(setups, trace).plans == play(setups, trace).plans


def test_a_cache_that_is_too_small_for_all_puts_the_youngest_back_and_loses_no_text() -> None:
    device = Device([Setup(capacity=620, slots=3)])
    prompts = [[_BOS, *bytes([65 + i]) * 10, *b"xyz"] for i in range(3)]
    for prompt in prompts:
        device.add(prompt, 590, namespace=str(prompt))
    device.drain()
    assert device.preempted > 0
    assert [int(s.id) for s in device.finished] == [0, 1, 2]
    for s, prompt in zip(device.finished, prompts, strict=True):
        assert s.tokens[s.prompt_length :] == alone(prompt, 590)


def test_a_request_as_large_as_the_cache_runs() -> None:
    device = Device([Setup(capacity=64)])
    device.add([_BOS, *b"a" * 20], 3)
    device.add([_BOS, *b"b" * 60], 3)
    device.drain()
    assert len(device.finished) == 2


def test_siblings_wait_for_the_first_one_and_share_its_prompt() -> None:
    device = Device([Setup(slots=4)])
    prompt = [_BOS, *b"abcdefgh" * 10]
    leader = device.add(prompt, 5)
    others = [device.add(prompt, 5, leader=leader) for _ in range(3)]
    device.drain()
    again = [81 - s.cached for s in others]
    assert leader.cached == 0
    assert again == [1, 1, 1]
    assert sum(len(rows) for _, _, rows, *_ in device.plans) == 81 + sum(again) + 4 * 4


@pytest.mark.parametrize("when", ["queued", "prefilling"])
def test_siblings_do_not_wait_for_a_first_one_that_was_cancelled(when: str) -> None:
    device = Device([Setup(max_prefill_step_ms=20)])
    leader = device.add([_BOS, *b"abcdefgh" * 10], 5)
    device.add(leader.tokens, 5, leader=leader)
    if when == "prefilling":
        device.step()
        assert 0 < leader.computed < 80
    device.scheduler.release(leader)
    device.drain()
    assert [s.id for s in device.finished] == ["1"]


def test_releasing_twice_is_harmless() -> None:
    device = Device([Setup()])
    sequence, other = device.add([1, 2, 3], 5), device.add([1, 2, 3], 5)
    device.step()
    device.scheduler.release(sequence)
    device.scheduler.release(sequence)
    device.drain()
    assert device.finished == [other]


def test_a_running_stream_goes_on_while_a_long_prompt_comes() -> None:
    device = Device([Setup(max_step_ms=40, max_rows=512)])
    stream = device.add([_BOS, *b"abc"], 200)
    for _ in range(3):
        device.step()
    prompt = device.add([_BOS, *b"abcdefgh" * 50], 1)
    seen, gap = stream.generated, 0.0
    at = device.now
    while not prompt.done:
        device.step()
        if stream.generated > seen:
            seen, gap, at = stream.generated, max(gap, device.now - at), device.now
    assert gap <= 0.080 + 1e-9  # a step of its own for the prompt, and the next one


def test_prefill_and_decode_take_turns_where_they_mix_poorly() -> None:
    """A tile of 8 rows within the limit: seven streams leave one row, a step of its own has eight."""
    device = Device([Setup(max_step_ms=16, slots=8, per_output=0)])
    streams = [device.add([_BOS, *b"abc"], 300, namespace=str(i)) for i in range(7)]
    while not all(s.generated for s in streams):
        device.step()
    prompt = device.add([_BOS, *b"abcdefgh" * 50], 1)
    kinds = []
    while not prompt.done:
        step = device.step()
        assert step
        kinds.append((step.decode_rows, len(step.rows) - step.decode_rows))
    assert set(kinds[:-6]) == {(7, 0), (0, 8)}  # the last chunks are uneven, to keep their bits
    assert all(a != b for a, b in itertools.pairwise(kinds))


def test_a_short_prompt_does_not_wait_for_a_long_one_before_it() -> None:
    device = Device([Setup(max_prefill_step_ms=60)])
    long = device.add([_BOS, *b"abcdefgh" * 60], 1)
    short = device.add([_BOS, *b"xyz"], 1, namespace="other")
    device.step()
    assert short.done
    assert not long.done


def busy(device: Device, model: str, tokens: int = 3000) -> Sequence:
    return device.add([_BOS, *b"abc"], tokens, model)


def test_two_busy_models_get_equal_time_whatever_their_steps_cost() -> None:
    device = Device([Setup(one_ms=5), Setup(one_ms=60)])
    busy(device, "m0"), busy(device, "m1")
    device.run_for(4000)
    assert device.served["m0"] == pytest.approx(device.served["m1"], abs=130)
    assert device.served["m0"] > 1800


def test_a_model_alone_gets_all_the_time() -> None:
    device = Device([Setup(), Setup()])
    busy(device, "m0")
    device.run_for(500)
    assert device.served == {"m0": pytest.approx(500, abs=10), "m1": 0}


def test_an_idle_model_earns_no_credit() -> None:
    device = Device([Setup(), Setup()])
    busy(device, "m0")
    device.run_for(2000)
    busy(device, "m1")
    before = device.served["m0"]
    device.run_for(400)
    assert device.served["m0"] - before == pytest.approx(200, abs=21)
    assert device.served["m1"] == pytest.approx(200, abs=21)


def test_a_model_does_not_pay_for_time_that_nobody_else_wanted() -> None:
    """Also when everything was idle in between."""
    device = Device([Setup(), Setup()])
    first = busy(device, "m0")
    device.run_for(2000)
    device.scheduler.release(first)
    assert device.step() is None
    busy(device, "m1")
    device.run_for(100)
    busy(device, "m0")
    before = device.served["m0"]
    device.run_for(400)
    assert device.served["m0"] - before == pytest.approx(200, abs=21)


def test_a_model_that_is_loaded_later_starts_level() -> None:
    device = Device([Setup()])
    busy(device, "m0")
    device.run_for(2000)
    device.add_model("m1", Setup())
    busy(device, "m1")
    device.run_for(400)
    assert device.served["m1"] == pytest.approx(200, abs=21)


def test_the_scheduler_and_what_it_decides_by_know_no_clock_chance_or_outside_world() -> None:
    engine = Path(__file__).parents[2] / "server" / "twospeed" / "engine"
    allowed = {
        "__future__", "bisect", "collections", "dataclasses", "typing", "msgspec", "numpy", "pathlib", "config",
    }  # fmt: skip
    todo, seen = ["scheduler"], set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        for node in ast.walk(ast.parse((engine / f"{module}.py").read_text())):
            assert not (isinstance(node, ast.Name) and node.id in {"open", "print", "input", "__import__"})
            if isinstance(node, ast.Import):
                assert {name.name.partition(".")[0] for name in node.names} <= allowed
            elif isinstance(node, ast.ImportFrom) and node.level == 1 and module != "runner/base":
                assert node.module
                todo.append(node.module.replace(".", "/"))
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] in allowed
    assert seen == {"scheduler", "compose", "lanes", "cost", "kv", "runner/base"}
