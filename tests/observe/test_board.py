"""The tiers' standing: promises from the configuration, seats from the gateway, the rest from the window."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from twospeed.config import Config, ServiceTiers
from twospeed.gateway.admission import Admission
from twospeed.gateway.counts import AdmissionCounts
from twospeed.observe.board import Board, TierBoard
from twospeed.observe.collector import TierCollector
from twospeed.observe.window import Window
from twospeed.types import TIERS, ModelStatus, ServiceTier, StepStats, TierStep


def policies(**tiers: Any) -> ServiceTiers:
    return ServiceTiers.model_validate(tiers)


def test_what_the_defaults_promise() -> None:
    found = policies().promised()
    assert found["ultrafast"] == 0.9
    assert found["flex"] == 0.02
    assert found["priority"] == pytest.approx(4 * found["default"])
    assert sum(found.values()) == pytest.approx(1)


def test_without_a_shared_tier_first_and_last_keep_theirs() -> None:
    first = {"precedence": "first", "share": 0.2}
    found = policies(ultrafast=first, priority=first, default=first, flex={"share": 0.1}).promised()
    assert list(found.values()) == [0.2, 0.2, 0.2, 0.1]


_tier = st.fixed_dictionaries(
    {"share": st.floats(0.01, 0.2)},
    optional={"precedence": st.sampled_from(["first", "shared", "last"]), "weight": st.floats(0.1, 1000)},
)


@given(tiers=st.fixed_dictionaries({tier: _tier for tier in TIERS if tier != "ultrafast"}))
def test_promises_are_positive_and_never_above_the_whole(tiers: dict[str, Any]) -> None:
    found = policies(**{"ultrafast": {"share": 0.3}} | tiers).promised()
    assert list(found) == list(TIERS)
    assert all(share > 0 for share in found.values())
    assert sum(found.values()) <= 1.0001


class Counts:
    def __init__(self, **held: int) -> None:
        self.held_by_tier = held

    def seats(self, model: str, tier: ServiceTier) -> int:
        return 2

    def held(self, model: str, tier: ServiceTier) -> int:
        return self.held_by_tier.get(tier, 0)


def board(counts: Counts, *steps: StepStats) -> Board:
    config = Config.model_validate({"version": 1, "models": {"m": {"backend": "fake"}}})
    now = [100.0]
    window = Window(lambda: now[0])
    now[0] += 1
    for step in steps:
        window.step(step)
    return Board(
        config,
        window,
        counts,
        lambda name: ModelStatus(name=name, state="ready"),
        policies=lambda: config.service_tiers,
    )


def step(*tiers: TierStep) -> StepStats:
    return StepStats(
        model="m",
        ms=100,
        predicted_ms=90,
        decode_rows=3,
        prefill_rows=5,
        running=sum(tier.running for tier in tiers),
        waiting=sum(tier.waiting for tier in tiers),
        kv_used=50,
        kv_total=100,
        tiers=list(tiers),
    )


def test_a_board_says_how_every_tier_and_model_stands() -> None:
    shown = board(
        Counts(ultrafast=1, default=5), step(TierStep("ultrafast", 75, 8, 1, 0), TierStep("default", 25, 2, 2, 3))
    ).draw()
    assert [tier.tier for tier in shown.tiers] == list(TIERS)
    ultrafast, _, default, flex = shown.tiers
    assert (ultrafast.precedence, ultrafast.share_promised, ultrafast.share_used) == ("first", 0.9, 0.75)
    assert (ultrafast.tokens_per_second, default.tokens_per_second, flex.tokens_per_second) == (80, 20, 0)
    (seats,) = default.models
    assert (seats.model, seats.seats, seats.seats_in_use, seats.queue, seats.share_used) == ("m", 2, 2, 3, 0.25)
    (model,) = shown.models
    assert (model.state, model.running, model.waiting) == ("ready", 3, 3)
    assert (model.step_ms, model.decode_rows, model.prefill_rows, model.steps_per_second) == (100, 3, 5, 1)
    assert (model.kv_used_tokens, model.kv_total_tokens) == (50, 100)
    assert (shown.window_s, shown.device_busy) == (1, 0.1)


def test_who_waits_for_a_slot_is_in_the_queue_though_its_tier_has_a_seat() -> None:
    assert board(Counts(flex=2), step(TierStep("flex", 1, 1, 1, 1))).seats("m", "flex") == (2, 1, 1)


def test_what_was_let_out_no_longer_runs_nor_waits_whatever_the_last_step_said() -> None:
    shown = board(Counts(), step(TierStep("default", 100, 1, 2, 3)))
    assert shown.seats("m", "default") == (2, 0, 0)
    (model,) = shown.draw().models
    assert (model.running, model.waiting) == (0, 0)


def test_before_the_first_step_there_are_seats_and_no_figures() -> None:
    shown = board(Counts(priority=1)).draw()
    priority = shown.tiers[1]
    assert (priority.models[0].seats_in_use, priority.models[0].ttft_ms.p50, priority.share_used) == (1, None, 0)
    assert shown.models[0].step_ms is None


@given(
    held=st.dictionaries(st.sampled_from(TIERS), st.integers(0, 9)),
    reported=st.lists(
        st.builds(TierStep, st.sampled_from(TIERS), st.just(1.0), st.just(1), st.integers(0, 9), st.integers(0, 9)),
        unique_by=lambda tier: tier.tier,
        max_size=4,
    ),
)
def test_seats_in_use_and_queue_are_all_that_was_let_in(held: dict[str, int], reported: list[TierStep]) -> None:
    shown: TierBoard = board(Counts(**held), step(*reported)).draw()
    for tier in shown.tiers:
        (seats,) = tier.models
        assert seats.seats_in_use + seats.queue == held.get(tier.tier, 0)
        assert 0 <= seats.seats_in_use <= seats.seats


def test_prometheus_shows_the_same() -> None:
    registry = CollectorRegistry()
    registry.register(TierCollector(board(Counts(default=5), step(TierStep("default", 250, 2, 2, 3)))))
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'twospeed_tier_device_seconds_total{model="m",tier="default"} 0.25',
        'twospeed_tier_device_seconds_total{model="m",tier="flex"} 0.0',
        'twospeed_tier_share_promised{tier="ultrafast"} 0.9',
        'twospeed_tier_seats{model="m",tier="default"} 2.0',
        'twospeed_tier_seats_in_use{model="m",tier="default"} 2.0',
        'twospeed_tier_queue_depth{model="m",tier="default"} 3.0',
    ):
        assert line in lines


def test_permits_are_counted_in_their_tier() -> None:
    config = Config.model_validate(
        {
            "version": 1,
            "models": {"m": {"backend": "fake", "slots": 4}},
            "service_tiers": {"ultrafast": {"seats": 1}, "flex": {"seats": 9}},
        }
    )
    admission = Admission(config)
    counts = AdmissionCounts(admission)
    with admission.permit("m", "default", 3):
        assert [counts.held("m", tier) for tier in TIERS] == [0, 0, 3, 0]
    assert [counts.seats("m", tier) for tier in TIERS] == [1, 4, 4, 4]
