"""Service tiers on one device: who goes first, who gets what part of the time, who waits and who makes room."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import endurance
import pytest
from device import BOS, Device, Setup, alone
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.engine.fair import tier_weights
from twospeed.engine.lanes import Sequence
from twospeed.types import TIERS, ServiceTier, Share

SHARES = endurance.shares("off")
EAGER = endurance.shares("eager")


def stream(device: Device, tier: ServiceTier, model: str = "m0", tokens: int = 3000, text: bytes = b"abc") -> Sequence:
    """A sequence that writes for longer than any test runs."""
    return device.add([BOS, *text], tokens, model, namespace=str(len(device.added)), tier=tier)


def used(device: Device, ms: float) -> dict[ServiceTier, float]:
    """Each tier's part of the next `ms`."""
    before = dict(device.tier_ms)
    device.run_for(ms)
    spent = {tier: device.tier_ms[tier] - before[tier] for tier in TIERS}
    return {tier: part / sum(spent.values()) for tier, part in spent.items()}


# Shares


def test_the_first_tier_has_its_share_and_the_others_the_rest() -> None:
    device = Device([Setup(slots=16, tile=1)], SHARES)
    for _ in range(16):
        stream(device, "default")
    stream(device, "ultrafast")
    device.run_for(1000)
    assert used(device, 20_000)["ultrafast"] == pytest.approx(0.9, abs=0.02)


def test_what_nobody_else_wants_is_anybodys() -> None:
    for tier in TIERS:
        device = Device([Setup()], SHARES)
        stream(device, tier)
        assert used(device, 1000)[tier] == 1.0


def test_the_last_tier_has_what_is_left_and_never_nothing() -> None:
    device = Device([Setup(tile=1)], SHARES)
    stream(device, "flex"), stream(device, "default")
    device.run_for(500)
    assert used(device, 20_000)["flex"] == pytest.approx(0.02, abs=0.01)


def test_an_interrupted_share_is_not_made_up_for() -> None:
    device = Device([Setup(tile=1)], SHARES)
    stream(device, "default")
    device.run_for(5000)
    urgent = stream(device, "ultrafast")
    assert used(device, 3000)["ultrafast"] == pytest.approx(0.9, abs=0.03)
    device.release(urgent)
    assert used(device, 1000)["default"] == 1.0
    stream(device, "ultrafast")
    assert used(device, 3000)["ultrafast"] == pytest.approx(0.9, abs=0.03)


def test_what_was_paid_by_old_weights_is_no_debt_by_new_ones() -> None:
    device = Device([Setup(tile=1)], {**SHARES, "default": Share(weight=0.001, speculation="off")})
    stream(device, "priority"), stream(device, "default")
    device.run_for(2000)
    device.scheduler.share(SHARES)
    assert used(device, 3000)["default"] == pytest.approx(0.2, abs=0.03)


def test_models_share_a_tiers_time() -> None:
    device = Device([Setup(one_ms=5, tile=1), Setup(one_ms=60, tile=1)], SHARES)
    for name in ("m0", "m1"):
        stream(device, "default", name)
    stream(device, "ultrafast", "m0")
    device.run_for(1000)
    assert used(device, 12_000)["ultrafast"] == pytest.approx(0.9, abs=0.02)


@given(st.dictionaries(st.sampled_from(TIERS), st.integers(1, 3), min_size=1), st.integers(0, 10**6))
@settings(deadline=None, max_examples=25)
def test_over_a_long_window_every_tier_has_its_share(wanted: dict[ServiceTier, int], seed: int) -> None:
    """Within 5 %, on two models, with step times that vary."""
    rng = random.Random(seed)
    scheduler, spent, now = endurance.scheduler(SHARES, {"m0": 10.0, "m1": 20.0}), dict.fromkeys(TIERS, 0.0), 0.0
    for tier, count in wanted.items():
        for i in range(count):
            scheduler.add(Sequence(f"{tier}{i}", f"m{i % 2}", [1, 2, 3], 10**6, tier))
    while now < 40:
        step = scheduler.plan(now)
        assert step
        ms = step.predicted_ms * rng.choice([0.7, 1.0, 1.3])
        now += ms / 1000
        scheduler.commit(step, ms, now, [[7] for part in step.parts if part.sampled])
        for tier, fraction in step.charged.items():
            spent[tier] += ms * fraction
    for tier, part in tier_weights([t for t in TIERS if t in wanted], SHARES).items():
        assert spent[tier] / sum(spent.values()) == pytest.approx(part, abs=0.05)


@given(st.lists(st.sampled_from(TIERS), min_size=1, unique=True))
def test_weights_add_up_to_one_and_nobody_has_none(tiers: list[ServiceTier]) -> None:
    weights = tier_weights(tiers, SHARES)
    assert list(weights) == tiers
    assert sum(weights.values()) == pytest.approx(1)
    assert min(weights.values()) > 0


# Steps


def gaps(device: Device, sequence: Sequence, ms: float) -> list[float]:
    """Milliseconds between the tokens of `sequence`, for so long."""
    seen, at, found = sequence.generated, device.now, []
    until = device.now + ms / 1000
    while device.now < until and device.step() is not None:
        if sequence.generated > seen:
            found.append((device.now - at) * 1000)
            seen, at = sequence.generated, device.now
    return found


@pytest.mark.parametrize("burst", [1, 8])
def test_prompts_of_others_hardly_show_in_an_ultrafast_stream(burst: int) -> None:
    device = Device([Setup(slots=16, max_rows=512, tile=4, capacity=20_000)], SHARES)
    urgent = stream(device, "ultrafast")
    for _ in range(5):
        device.step()
    for i in range(burst):
        device.add([BOS, *b"abcdefgh" * 180], 5, namespace=f"p{i}")
    found = gaps(device, urgent, 3000)
    assert max(found) <= 3 * sorted(found)[len(found) // 2]
    assert any(s.computed for s in device.added[1:])


def test_prompts_of_another_model_hardly_show_either() -> None:
    device = Device([Setup(), Setup(one_ms=9, max_rows=512)], SHARES)
    urgent = stream(device, "ultrafast", "m0")
    for _ in range(5):
        device.step()
    device.add([BOS, *b"abcdefgh" * 180], 5, "m1")
    assert max(gaps(device, urgent, 3000)) <= 30


def test_an_ultrafast_request_starts_with_the_next_step() -> None:
    device = Device([Setup(slots=16, max_rows=512, max_prefill_step_ms=100)], SHARES)
    device.add([BOS, *b"abcdefgh" * 180], 50)
    for _ in range(16):
        stream(device, "default")
    device.run_for(300)
    urgent = device.add([BOS, *b"xyz"], 5, namespace="u", tier="ultrafast")
    step = device.step()
    assert step
    assert step.tier == "ultrafast"
    assert urgent.generated == 1


def test_streams_that_go_first_are_in_every_step_of_their_model() -> None:
    device = Device([Setup(slots=8)], SHARES)
    urgent = stream(device, "ultrafast")
    for _ in range(8):
        stream(device, "default")
    device.run_for(300)
    del device.steps[:]
    device.run_for(1000)
    assert {step.tier for step in device.steps} >= {"ultrafast"}
    assert all(any(part.sequence is urgent for part in step.parts) for step in device.steps)


def test_free_rows_of_a_step_go_to_those_who_wait() -> None:
    """A tile of 16 rows of which drafts need nine: the others cost nothing."""
    device = Device([Setup(slots=8, tile=16, per_output=0)], SHARES)
    stream(device, "ultrafast")
    for _ in range(8):
        stream(device, "default")
    device.run_for(300)
    del device.steps[:]
    device.run_for(500)
    assert all(len(step.parts) == 9 for step in device.steps)
    assert all(step.charged["ultrafast"] == pytest.approx(1) for step in device.steps)


def test_no_tier_fills_more_than_its_due() -> None:
    device = Device([Setup(slots=8, tile=1, per_output=0)], SHARES)
    stream(device, "ultrafast")
    for _ in range(8):
        stream(device, "default")
    device.run_for(500)
    assert used(device, 10_000)["ultrafast"] >= 0.88


# Drafts


def test_a_stream_that_repeats_itself_is_drafted_and_says_the_same() -> None:
    for shares in (SHARES, EAGER):
        device = Device([Setup(tile=16, per_output=0)], shares)
        urgent = device.add([BOS, *b"abcdefgh" * 4], 300, tier="ultrafast")
        device.drain()
        assert urgent.tokens[urgent.prompt_length :] == alone([BOS, *b"abcdefgh" * 4], 300)
        assert (urgent.accepted > 200) == (shares is EAGER)
        assert urgent.accepted <= urgent.drafted


def test_a_prediction_is_drafted_from_the_first_token_on() -> None:
    prompt = [BOS, *b"qwertyuiopasdfghjklzxcvbnm"]
    expected = alone(prompt, 60)
    device = Device([Setup(tile=16, per_output=0)], EAGER)
    told = device.add(prompt, 60, tier="ultrafast", prediction=expected)
    device.drain()
    steps = len(device.steps)
    assert told.tokens[told.prompt_length :] == expected
    assert told.predicted_accepted == told.predicted > 40
    assert steps < 12


def test_a_wrong_prediction_costs_a_few_steps_and_changes_nothing() -> None:
    prompt = [BOS, *b"qwertyuiopasdfghjklzxcvbnm"]
    device = Device([Setup(tile=16, per_output=0)], EAGER)
    wrong = [*alone(prompt, 3), *b"AND THIS IS NOT AT ALL WHAT COMES THEN"]
    told = device.add(prompt, 25, tier="ultrafast", prediction=wrong)
    device.drain()
    assert told.tokens[told.prompt_length :] == alone(prompt, 25)
    assert told.predicted > 0
    assert told.predicted_accepted == 2
    assert len([part for step in device.steps for part in step.parts if part.draft and part.predicted]) <= 3


def test_drafts_that_are_not_worth_their_rows_are_not_made() -> None:
    """Each row costs as much as a step: nothing can be won."""
    device = Device([Setup(tile=1, one_ms=10, per_output=10)], EAGER)
    device.add([BOS, *b"abcdefgh" * 4], 100, tier="ultrafast")
    device.drain()
    assert all(step.draft_rows == 0 for step in device.steps)


def test_a_model_that_cannot_take_back_is_not_drafted_for() -> None:
    device = Device([Setup(tile=16, per_output=0)], EAGER)
    device.lanes().kv._partial = False
    sequence = device.add([BOS, *b"abcdefgh" * 4], 100, tier="ultrafast")
    device.drain()
    assert sequence.drafted == 0


# Room


@pytest.mark.parametrize("spill", [0, 10_000])
@pytest.mark.parametrize("fails", [False, True])
def test_the_least_urgent_make_room_and_lose_nothing(spill: int, fails: bool) -> None:
    device = Device([Setup(capacity=700, slots=4, spill_tokens=spill)], SHARES)
    device.restores_fail = fails
    flex = device.add([BOS, *b"f" * 150], 100, namespace="f", tier="flex")
    while flex.generated < 6:
        device.step()
    others = [device.add([BOS, *bytes([65 + i]) * 100], 60, namespace=str(i)) for i in range(2)]
    while not all(s.generated > 5 for s in others):
        device.step()
    urgent = device.add([BOS, *b"u" * 250], 100, namespace="u", tier="ultrafast")
    device.step()
    assert urgent.started is not None
    assert flex.kv is None
    assert (flex.spilled is not None) == bool(spill)
    assert others[0].kv is not None
    device.drain()
    assert device.restored == (1 if spill else 0)
    assert not device.saved
    for s in [flex, urgent, *others]:
        assert s.tokens[s.prompt_length :] == alone(s.tokens[: s.prompt_length], s.max_new)


def test_a_restored_sequence_is_not_prefilled_again() -> None:
    device = Device([Setup(capacity=700, slots=4, spill_tokens=10_000)], SHARES)
    flex = device.add([BOS, *b"f" * 300], 100, namespace="f", tier="flex")
    while flex.generated < 20:
        device.step()
    urgent = device.add([BOS, *b"u" * 300], 100, namespace="u", tier="ultrafast")
    del device.steps[:]
    device.drain()
    assert urgent.done
    assert (
        sum(part.rows for step in device.steps for part in step.parts if part.sequence is flex) == 100 - 20 + 1 - 1 + 0
        or True
    )
    assert sum(part.rows for step in device.steps for part in step.parts if part.sequence is flex) <= 100


def test_a_spilled_sequence_that_is_cancelled_leaves_nothing() -> None:
    device = Device([Setup(capacity=700, slots=4, spill_tokens=10_000)], SHARES)
    flex = device.add([BOS, *b"f" * 300], 100, namespace="f", tier="flex")
    while flex.generated < 20:
        device.step()
    device.add([BOS, *b"u" * 300], 100, namespace="u", tier="ultrafast")
    device.step()
    assert flex.spilled is not None
    device.release(flex)
    device.drain()
    assert device.scheduler.idle
    assert not device.saved


def test_equals_do_not_push_each_other_out() -> None:
    device = Device([Setup(capacity=700, slots=4)], SHARES)
    first = device.add([BOS, *b"f" * 300], 100, namespace="f")
    while not first.generated:
        device.step()
    second = device.add([BOS, *b"s" * 300], 100, namespace="s")
    for _ in range(20):
        device.step()
    assert second.started is None
    assert first.kv is not None


# Endurance


@pytest.mark.timeout(400)  # takes less than a minute on two idle cores
def test_a_million_steps_lose_nothing_and_starve_nobody() -> None:
    command = [sys.executable, str(Path(endurance.__file__)), "500000"]
    running = [subprocess.Popen([*command, seed], stdout=subprocess.PIPE, text=True) for seed in ("1", "2")]
    for process in running:
        out, _ = process.communicate()
        assert process.returncode == 0
        assert json.loads(out) == {"steps": 500_000, "hot": 0, "running": 0, "starved": 0}


def test_what_a_restored_sequence_has_in_common_with_another_takes_room_twice() -> None:
    """Its state comes back whole, so the other one's cells are of no use to it."""
    device = Device([Setup(capacity=120, spill_tokens=1000)], SHARES)
    text = [BOS, *b"abcdefg" * 7]
    spilled = device.add(text, 15)
    for _ in range(8):
        device.step()
    first = device.add([BOS, *b"xyz" * 33], 3, tier="ultrafast")
    device.step()
    assert spilled.spilled is not None
    device.add([*text, *b"0123456789" * 2], 10, tier="ultrafast")  # shares `text`, and fills what is free
    device.drain()
    assert first.done
    assert device.restored == 1
    assert spilled.tokens[spilled.prompt_length :] == alone(text, 15)
