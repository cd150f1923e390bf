"""Which tier, how many seats, what share: arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.config import Config, ServiceTiers, TierPolicy
from twospeed.errors import ApiError
from twospeed.gateway.auth import ANYONE, Principal
from twospeed.gateway.tiers import queue_of, queue_wait_of, seats_for, shares, tier_for
from twospeed.types import TIERS, ServiceTier, Share

STREAM_MS = [10.0, 15, 18, 21, 40]  # a step with 1 to 5 streams
POLITE = Principal(name="p", namespace="", tiers=frozenset(["default", "flex"]), default_tier="flex")


@pytest.mark.parametrize(
    ("wanted", "tier"),
    [("auto", "default"), ("fast", "priority"), ("scale", "priority"), *((tier, tier) for tier in TIERS)],
)
def test_everybody_may_ask_for_everything_where_there_are_no_keys(wanted: str, tier: str) -> None:
    assert tier_for(wanted, ANYONE) == tier


def test_auto_is_the_keys_default() -> None:
    assert tier_for("auto", POLITE) == "flex"


@pytest.mark.parametrize("wanted", ["fast", "scale", "priority", "ultrafast"])
def test_a_tier_that_a_key_is_not_let_into_is_refused_with_what_it_may_use(wanted: str) -> None:
    with pytest.raises(ApiError) as caught:
        tier_for(wanted, POLITE)
    error = caught.value
    assert (error.status, error.kind.type, error.param) == (400, "invalid_request_error", "service_tier")
    assert error.code == "service_tier_not_allowed"
    assert "default, flex" in error.message
    assert ("limited preview" in error.message) == (wanted == "ultrafast")


@pytest.mark.parametrize(
    ("policy", "promised", "slots", "seats"),
    [
        ({"seats": 3}, 0.9, 8, 3),
        ({"seats": 9}, 0.9, 4, 4),
        ({"seats": 0}, 0.9, 4, 0),
        ({"min_tok_s": None}, 0.9, 7, 7),
        ({"min_tok_s": "auto"}, 0.9, 8, 3),  # 20 ms at most
        ({"min_tok_s": "auto"}, 0.01, 8, 3),
        ({"min_tok_s": "auto"}, 0.9, 2, 2),
        ({"min_tok_s": 25}, 0.9, 8, 4),  # 36 ms at most
        ({"min_tok_s": 25}, 0.45, 8, 3),  # 18 ms at most
        ({"min_tok_s": 1000}, 0.9, 8, 1),
        ({"min_tok_s": 1}, 0.9, 8, 5),  # no more is known
    ],
)
def test_seats_are_as_many_as_keep_their_speed(policy: dict[str, Any], promised: float, slots: int, seats: int) -> None:
    assert seats_for(TierPolicy.model_validate(policy), promised, slots, STREAM_MS) == seats


@pytest.mark.parametrize("min_tok_s", [None, "auto", 30])
def test_before_a_model_is_measured_its_slots_are_the_seats(min_tok_s: Any) -> None:
    assert seats_for(TierPolicy(min_tok_s=min_tok_s), 0.9, 6, []) == 6


@given(
    st.lists(st.floats(0.1, 1000), min_size=1, max_size=64),
    st.floats(0.01, 1000) | st.just("auto"),
    st.floats(0.01, 1),
    st.integers(1, 64),
)
def test_computed_seats_are_within_bounds_and_the_last_one_keeps_the_speed(
    stream_ms: list[float], min_tok_s: Any, promised: float, slots: int
) -> None:
    seats = seats_for(TierPolicy(min_tok_s=min_tok_s), promised, slots, stream_ms)
    assert 1 <= seats <= min(slots, len(stream_ms))
    if seats > 1:
        wanted = 500 / stream_ms[0] if min_tok_s == "auto" else min_tok_s / promised
        assert 1000 / stream_ms[seats - 1] >= wanted * (1 - 1e-9)


def tiers(**policies: Any) -> ServiceTiers:
    return ServiceTiers.model_validate(policies)


def test_promised_shares_are_the_whole_device_or_less() -> None:
    given_ = tiers(ultrafast={"share": 0.5}, priority={"weight": 3}, default={"weight": 1}, flex={"share": 0.1})
    promised = [given_.promised()[tier] for tier in TIERS]
    assert promised == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert sum(ServiceTiers().promised()[tier] for tier in TIERS) == pytest.approx(1)


def test_the_engine_is_told_the_shares_of_all_tiers() -> None:
    told = shares(tiers(flex={"share": 0.05}))
    assert list(told) == list(TIERS)
    assert told["flex"] == Share(precedence="last", share=0.05)
    assert told["ultrafast"].speculation == "eager"


@pytest.mark.parametrize(("tier", "queue", "wait"), [("default", 7, 9.0), ("flex", 2, 1.0), ("ultrafast", 0, 9.0)])
def test_what_a_tier_leaves_out_is_the_servers(tier: ServiceTier, queue: int, wait: float) -> None:
    config = Config.model_validate(
        {
            "version": 1,
            "models": {"m": {"backend": "fake"}},
            "server": {"max_queue": 7, "queue_wait_s": 9},
            "service_tiers": {"flex": {"max_queue": 2, "queue_wait_s": 1}},
        }
    )
    assert (queue_of(config, tier), queue_wait_of(config, tier)) == (queue, wait)


def test_service_tiers_are_laid_over_the_defaults_of_each_tier() -> None:
    given_ = tiers(flex={"share": 0.05})
    assert given_.flex.model_copy(update={"share": 0.02}) == ServiceTiers().flex
    assert given_.ultrafast == ServiceTiers().ultrafast


@pytest.mark.parametrize(
    ("policies", "says"),
    [
        ({"default": {"over": "downgrade"}}, "default.over"),
        ({"flex": {"over": "downgrade"}}, "flex.over"),
        ({"default": {"seats": 0}}, "default.seats"),
        ({"ultrafast": {"share": 0.9}, "flex": {"share": 0.1}}, "leave some for the others"),
        ({"gold": {}}, "gold"),
    ],
)
def test_tiers_that_make_no_sense_are_configuration_errors(policies: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiers(**policies)
