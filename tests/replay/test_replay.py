"""A recorded run plans the same again, its report says what happened, and another policy is worth what it should be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traced import Traced

from twospeed.config import Config
from twospeed.engine import trace
from twospeed.engine.trace import Restored, RestoreFailed, TraceError
from twospeed.replay.read import Outcome, read_lines, what_if
from twospeed.replay.report import Line, Report
from twospeed.replay.view import text
from twospeed.replay.whatif import Limits, Policy, policy_of
from twospeed.types import TIERS, ServiceTier, Share

NO_DRAFTS: dict[ServiceTier, Share] = {tier: Share(speculation="off") for tier in TIERS}


def line(report: Report, tier: ServiceTier, model: str = "fast") -> Line:
    (found,) = (each for each in report.tiers if (each.tier, each.model) == (tier, model))
    return found


def loaded(seed: int = 0, *, streams: int = 6, **options: Any) -> Traced:
    """`streams` default ones of 100 tokens each, all at once, and an ultrafast one that comes while they run."""
    traced = Traced(seed, slots=8, kv_tokens=4096, **options)
    traced.core.share(NO_DRAFTS)
    for i in range(streams):
        traced.submit(f"abcdefgh{i}", max_tokens=100)
    for _ in range(10):
        traced.core.step()
    traced.submit("abcdefgh", max_tokens=100, tier="ultrafast")
    traced.drain()
    return traced


# The same again


@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([256, 512, 4096]), st.booleans())
@settings(deadline=None, max_examples=25)
def test_a_recorded_run_gives_the_same_plans(seed: int, slots: int, kv_tokens: int, restores_fail: bool) -> None:
    traced = Traced(seed, slots=slots, kv_tokens=kv_tokens, slowness=[0.5, 1.0, 3.0], restores_fail=restores_fail)
    traced.random_run(40)
    outcome = read_lines(traced.lines)
    assert outcome.difference is None
    assert sum(each.sequences for each in outcome.recorded.tiers) == len(traced.of(trace.Added))
    assert outcome.recorded.steps == len(traced.of(trace.Stepped))
    what_if(outcome.lives, Policy(speculation="eager", every=Limits(slots=2)))  # comes to an end


def test_also_where_sequences_went_to_ram_and_some_did_not_come_back() -> None:
    traced = Traced(1, slots=4, kv_tokens=256, restores_fail=True)
    traced.core.share(NO_DRAFTS)
    for i in range(3):
        traced.submit(f"{i}" * 40, max_tokens=100, tier="flex")
    for _ in range(2):  # a burst, and another when that one is over
        for _ in range(60):
            traced.core.step()
        for i in range(3):
            traced.submit(f"abc{i}" * 20, max_tokens=40, tier="ultrafast")
            traced.core.step()
    traced.drain()
    outcome = read_lines(traced.lines)
    assert traced.of(Restored)
    assert traced.of(RestoreFailed)
    assert outcome.difference is None
    assert line(outcome.recorded, "flex").preemptions > 0


def test_several_lives_are_each_replayed_from_nothing() -> None:
    first, second = loaded(), loaded()
    outcome = read_lines([*first.lines, *second.lines])
    one = read_lines(first.lines)
    assert (outcome.difference, outcome.recorded.lives) == (None, 2)
    assert outcome.recorded.span_s == pytest.approx(2 * one.recorded.span_s)
    assert line(outcome.recorded, "default").sequences == 12


def changed(traced: Traced, at: int, change: dict[str, Any]) -> list[bytes]:
    """Its lines, the `at`th step with other fields."""
    steps = [i for i, each in enumerate(traced.events) if isinstance(each, trace.Stepped)]
    lines = list(traced.lines)
    lines[steps[at]] = json.dumps(json.loads(lines[steps[at]]) | change).encode() + b"\n"
    return lines


def test_the_first_plan_that_differs_is_named() -> None:
    difference = read_lines(changed(loaded(), 7, {"predicted_ms": 1.0})).difference
    assert difference is not None
    assert "after 7 steps: a step of fast for default: predicted_ms was 1.0, and now is" in difference


def test_a_step_that_took_longer_than_recorded_changes_what_is_planned_later() -> None:
    assert read_lines(changed(loaded(), 7, {"ms": 80.0})).difference is not None


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b"hello\n"],
        [b'{"event":"header","trace":99,"twospeed":"9"}\n'],
        [b'{"event":"header","trace":1,"twospeed":"0"}\n', b'{"event":"release","sequence":1,"at":0}\n'],
        [b'{"event":"header","trace":1,"twospeed":"0"}\n', b'{"event":"idle"}\n', b'{"event":"idle","at":1}\n'],
        [b'{"event":"header","trace":1,"twospeed":"0"}\n', b"\xff\xff\n"],
    ],
)
def test_a_broken_trace_is_an_error_of_one_line(lines: list[bytes]) -> None:
    with pytest.raises(TraceError) as error:
        read_lines(lines)
    assert "\n" not in str(error.value)


def test_a_step_of_a_sequence_that_is_not_there_is_an_error_also_behind_a_difference() -> None:
    lines = changed(loaded(), 3, {"parts": [[99, 1, [], False, None]]})
    with pytest.raises(TraceError, match="makes no sense"):
        read_lines(lines)


# The report


def test_the_report_is_what_happened() -> None:
    traced = Traced()
    traced.core.share(NO_DRAFTS)
    traced.submit("abc", max_tokens=11)
    rows = len(traced.of(trace.Added)[0].prompt)
    traced.drain()
    report = read_lines(traced.lines).recorded
    (only,) = report.tiers
    assert (only.tier, only.model, only.sequences, only.tokens, only.cancelled) == ("default", "fast", 1, 11, 0)
    assert only.ttft_ms == msgspec.structs.replace(
        only.ttft_ms, p50=pytest.approx(2 + rows), p95=pytest.approx(2 + rows)
    )
    assert only.tokens_per_second is not None
    assert only.tokens_per_second.p50 == pytest.approx(1000 / 3)
    assert only.longest_gap_ms == pytest.approx(3)
    assert only.device_ms == pytest.approx(2 + rows + 10 * 3)
    assert (only.device_share, only.steps, only.rows_per_step) == (1.0, 11, (rows + 10) / 11)


def test_it_counts_cancels_drafts_and_waits() -> None:
    traced = Traced(slots=1)
    traced.submit("abc" * 20, max_tokens=60, speculation="eager")
    waits = traced.submit("xyz", max_tokens=60)
    for _ in range(4):
        traced.core.step()
    traced.core.cancel(waits)
    traced.drain()
    only = line(read_lines(traced.lines).recorded, "default")
    assert (only.sequences, only.cancelled) == (2, 1)
    assert only.drafted >= only.drafts_accepted > 20
    assert only.wait_ms is not None
    assert only.wait_ms.p95 == 0  # who never ran has none


# What if


def simulated(traced: Traced, policy: Policy) -> tuple[Outcome, Report]:
    outcome = read_lines(traced.lines)
    return outcome, what_if(outcome.lives, policy)


def test_the_recorded_policy_gives_the_recorded_figures() -> None:
    outcome, same = simulated(loaded(), Policy())
    for tier in ("default", "ultrafast"):
        before, now = line(outcome.recorded, tier), line(same, tier)
        assert (now.sequences, now.tokens) == (before.sequences, before.tokens)
        assert now.device_ms == pytest.approx(before.device_ms, rel=0.02)
        assert now.ttft_ms.p95 == pytest.approx(before.ttft_ms.p95, rel=0.1)  # type: ignore[union-attr]


def test_other_shares_move_time_from_one_tier_to_another() -> None:
    traced = loaded()
    first = NO_DRAFTS | {"ultrafast": Share(precedence="first", share=0.9, speculation="off")}
    outcome, report = simulated(traced, Policy(shares=first))
    before, now = line(outcome.recorded, "ultrafast"), line(report, "ultrafast")
    assert now.tokens_per_second.p50 > 1.3 * before.tokens_per_second.p50  # type: ignore[union-attr]
    assert line(report, "default").tokens == line(outcome.recorded, "default").tokens


def test_fewer_slots_make_the_others_wait() -> None:
    outcome, report = simulated(loaded(), Policy(every=Limits(slots=2)))
    assert line(outcome.recorded, "default").wait_ms.p95 < 50  # type: ignore[union-attr]
    assert line(report, "default").wait_ms.p95 > 300  # type: ignore[union-attr]
    assert line(report, "default").tokens == 600


def test_speculation_is_right_as_far_as_the_record_agrees() -> None:
    outcome, report = simulated(loaded(streams=1), Policy(speculation="eager"))
    assert line(outcome.recorded, "default").drafted == 0
    now = line(report, "default")
    assert now.drafts_accepted > 50  # it repeats itself
    assert now.tokens == 100
    assert report.steps < outcome.recorded.steps


def test_a_cancelled_one_is_cancelled_when_it_was_if_it_still_runs() -> None:
    traced = Traced(slots=4, kv_tokens=4096)
    traced.core.share(NO_DRAFTS)
    others = [traced.submit(f"abc{i}", max_tokens=400) for i in range(2)]
    for _ in range(30):
        traced.core.step()
    for name in others:
        traced.core.cancel(name)
    traced.drain()
    outcome, report = simulated(traced, Policy(every=Limits(slots=1)))
    assert line(outcome.recorded, "default").cancelled == 2
    now = line(report, "default")
    assert now.tokens < line(outcome.recorded, "default").tokens
    assert now.cancelled == 1  # the first one had the device alone, and was done before


def test_a_sequence_that_never_wrote_may_come_to_its_first_token() -> None:
    traced = Traced(slots=1, kv_tokens=4096)
    traced.core.share(NO_DRAFTS)
    traced.submit("abc", max_tokens=50, namespace="a")
    gone = traced.submit("xyz", max_tokens=50, namespace="b")
    for _ in range(20):
        traced.core.step()
    traced.core.cancel(gone)
    traced.drain()
    _, report = simulated(traced, Policy(every=Limits(slots=2)))
    assert line(report, "default").tokens == 51


def test_a_configuration_is_a_policy() -> None:
    config = Config.model_validate(
        {
            "version": 1,
            "service_tiers": {"flex": {"speculation": "off"}},
            "models": {"fast": {"backend": "fake", "slots": 2, "max_step_ms": 20}},
        }
    )
    policy = policy_of(config)
    assert policy.shared({})["flex"].speculation == "off"
    assert policy.shared({})["ultrafast"] == Share(precedence="first", share=0.9, speculation="eager")
    added = loaded().of(trace.ModelAdded)
    fast, smart = (policy.model(event) for event in added)
    assert (fast.slots, fast.max_step_ms, fast.seqs) == (2, 20, added[0].seqs)
    assert smart == added[1]  # this configuration knows no such model


def test_the_table_has_both_in_each_cell() -> None:
    outcome, report = simulated(loaded(), Policy(every=Limits(slots=2)))
    alone, both = text(outcome.recorded), text(outcome.recorded, report)
    assert "ultrafast fast" in alone
    assert ">" not in alone
    assert next(row for row in both.splitlines() if row.startswith("tokens")).split()[1:4] == ["100", ">", "100"]


def test_what_no_engine_can_have_recorded_is_an_error_of_one_line_in_a_simulation_too() -> None:
    lines = list(loaded().lines)
    at = next(i for i, each in enumerate(lines) if b'"add"' in each)
    lines[at] = json.dumps(json.loads(lines[at]) | {"prompt": list(range(5000))}).encode() + b"\n"  # the cache has 4096
    outcome = read_lines(lines)
    assert outcome.difference is not None
    with pytest.raises(TraceError, match="cannot be simulated"):
        what_if(outcome.lives, Policy(speculation="off"))
