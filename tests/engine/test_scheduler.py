"""The scheduler's promises, on random traces of adds, cancels and step times over one to three models."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
from device import BOS, Device, Setup, alone, chat
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.engine.lanes import Sequence
from twospeed.types import TIERS, Share

_prompt = st.one_of(
    st.binary(min_size=0, max_size=12).map(chat),
    st.lists(st.sampled_from(b"ab"), min_size=1, max_size=40),
    st.integers(1, 60).map(lambda n: [BOS, *(b"abcdefgh" * 8)[:n]]),
)
_add = st.tuples(
    st.just("add"),
    st.integers(0, 2),  # model
    _prompt,
    st.integers(1, 20),  # max_new
    st.sampled_from(["", "", "bob"]),
    st.integers(0, 2),  # siblings
    st.sampled_from([*TIERS, "default"]),
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
    spill_tokens=st.sampled_from([0, 0, 60, 10_000]),
)
_speculation = st.sampled_from(["off", "auto", "eager"])
_shares = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "ultrafast": st.builds(
                Share, precedence=st.just("first"), share=st.floats(0.1, 0.9), speculation=_speculation
            ),
            "priority": st.builds(Share, weight=st.floats(0.1, 100), speculation=_speculation),
            "default": st.builds(Share, weight=st.floats(0.1, 100), speculation=_speculation),
            "flex": st.builds(Share, precedence=st.just("last"), share=st.floats(0.01, 0.09), speculation=_speculation),
        }
    ),
)
_setups = st.lists(_setup, min_size=1, max_size=3)
_trace = st.lists(_event, max_size=16)


def play(
    setups: list[Setup], trace: list[tuple[Any, ...]], shares: Any = None, *, restores_fail: bool = False
) -> Device:
    """`shares=None`: every request in the same tier, and no drafts."""
    device = Device(setups, shares)
    device.restores_fail = restores_fail
    for event in trace:
        match event:
            case ("add", number, prompt, max_new, namespace, siblings, tier):
                tier = "default" if shares is None else tier
                model = f"m{number % len(setups)}"
                leader = None
                for _ in range(1 + siblings):
                    sequence = device.add(prompt, max_new, model, namespace=namespace, leader=leader, tier=tier)
                    leader = leader or sequence
            case ("cancel", number) if number < len(device.added):
                device.release(device.added[number])
            case ("step", times, slowness):
                for _ in range(times):
                    device.step(slowness)
    device.drain()
    return device


@given(_setups, _trace, _shares, st.booleans())
@settings(deadline=None, max_examples=200)
def test_any_trace_ends_with_the_text_that_each_sequence_alone_would_have(
    setups: list[Setup], trace: list[tuple[Any, ...]], shares: Any, restores_fail: bool
) -> None:
    device = play(setups, trace, shares, restores_fail=restores_fail)
    assert not device.saved
    assert device.scheduler.idle
    assert all(s.done for s in device.added)
    for s in device.finished:
        prompt, output = s.tokens[: s.prompt_length], s.tokens[s.prompt_length :]
        assert output == alone(prompt, s.max_new)
        assert s.cached < s.prompt_length
    for lanes in device.scheduler.models.values():
        assert not lanes.running
        assert lanes.kv.hot_cells == 0


@given(_setups, _trace, _shares)
@settings(deadline=None, max_examples=30)
def test_the_same_trace_gives_the_same_plans(setups: list[Setup], trace: list[tuple[Any, ...]], shares: Any) -> None:
    assert play(setups, trace, shares).plans == play(setups, trace, shares).plans


def test_a_draft_leaves_room_for_the_tier_that_leads_the_step() -> None:
    setup = Setup(capacity=90, slots=1, max_rows=8, max_prefill_step_ms=60, one_ms=2, tile=16, per_output=0.0)
    trace = [
        ("add", 0, chat(b""), 1, "", 0, "ultrafast"),
        ("add", 0, chat(b""), 1, "", 0, "ultrafast"),
        ("add", 0, chat(bytes(6)), 2, "", 2, "priority"),
        ("add", 0, [262, 0, 0, 0, 1, 0, 0, 1, 0, 257, 263], 11, "", 0, "ultrafast"),
    ]
    shares = {
        "ultrafast": Share(precedence="first"),
        "priority": Share(speculation="off"),
        "default": Share(speculation="off"),
        "flex": Share(precedence="last", share=0.0625, speculation="off"),
    }
    play([setup], trace, shares)  # the device refuses a step with too many rows


def test_a_cache_that_is_too_small_for_all_puts_the_youngest_back_and_loses_no_text() -> None:
    device = Device([Setup(capacity=620, slots=3)])
    prompts = [[BOS, *bytes([65 + i]) * 10, *b"xyz"] for i in range(3)]
    for prompt in prompts:
        device.add(prompt, 590, namespace=str(prompt))
    device.drain()
    assert device.preempted > 0
    assert [int(s.id) for s in device.finished] == [0, 1, 2]
    for s, prompt in zip(device.finished, prompts, strict=True):
        assert s.tokens[s.prompt_length :] == alone(prompt, 590)


def test_a_request_as_large_as_the_cache_runs() -> None:
    device = Device([Setup(capacity=64)])
    device.add([BOS, *b"a" * 20], 3)
    device.add([BOS, *b"b" * 60], 3)
    device.drain()
    assert len(device.finished) == 2


def test_siblings_wait_for_the_first_one_and_share_its_prompt() -> None:
    device = Device([Setup(slots=4)])
    prompt = [BOS, *b"abcdefgh" * 10]
    leader = device.add(prompt, 5)
    others = [device.add(prompt, 5, leader=leader) for _ in range(3)]
    device.drain()
    again = [81 - s.cached for s in others]
    assert leader.cached == 0
    assert again == [1, 1, 1]
    assert sum(len(rows) for _, _, _, rows, *_ in device.plans) == 81 + sum(again) + 4 * 4


@pytest.mark.parametrize("when", ["queued", "prefilling"])
def test_siblings_do_not_wait_for_a_first_one_that_was_cancelled(when: str) -> None:
    device = Device([Setup(max_prefill_step_ms=20)])
    leader = device.add([BOS, *b"abcdefgh" * 10], 5)
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
    stream = device.add([BOS, *b"abc"], 200)
    for _ in range(3):
        device.step()
    prompt = device.add([BOS, *b"abcdefgh" * 50], 1)
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
    streams = [device.add([BOS, *b"abc"], 300, namespace=str(i)) for i in range(7)]
    while not all(s.generated for s in streams):
        device.step()
    prompt = device.add([BOS, *b"abcdefgh" * 50], 1)
    kinds = []
    while not prompt.done:
        step = device.step()
        assert step
        kinds.append((step.decode_rows, len(step.rows) - step.decode_rows))
    assert set(kinds[:-6]) == {(7, 0), (0, 8)}  # the last chunks are uneven, to keep their bits
    assert all(a != b for a, b in itertools.pairwise(kinds))


def test_a_short_prompt_does_not_wait_for_a_long_one_before_it() -> None:
    device = Device([Setup(max_prefill_step_ms=60)])
    long = device.add([BOS, *b"abcdefgh" * 60], 1)
    short = device.add([BOS, *b"xyz"], 1, namespace="other")
    device.step()
    assert short.done
    assert not long.done


def busy(device: Device, model: str, tokens: int = 3000) -> Sequence:
    return device.add([BOS, *b"abc"], tokens, model)


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
        "__future__", "bisect", "collections", "dataclasses", "typing", "msgspec", "numpy", "pathlib",
        "config", "types",
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
    assert seen == {
        "scheduler",
        "compose",
        "drafting",
        "fair",
        "lanes",
        "cost",
        "guess",
        "kv",
        "speculate",
        "runner/base",
    }
