"""The sliding window, with a clock that does as told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.observe.window import (
    BUCKET_S,
    STEPS_S,
    TTFT_S,
    TTFT_SAMPLES,
    ModelSum,
    Percentiles,
    Window,
    percentiles,
)
from twospeed.types import ServiceTier, StepStats, TierStep

DEFAULT, ULTRA = ("m", "default"), ("m", "ultrafast")


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def step(*tiers: tuple[ServiceTier, float, int], model: str = "m", decode: int = 1, prefill: int = 0) -> StepStats:
    ms = sum(ms for _, ms, _ in tiers)
    return StepStats(
        model=model,
        ms=ms,
        predicted_ms=ms,
        decode_rows=decode,
        prefill_rows=prefill,
        running=1,
        waiting=0,
        kv_used=7,
        kv_total=9,
        tiers=[TierStep(tier, ms, tokens, 1, 0) for tier, ms, tokens in tiers],
    )


def test_an_empty_window_reads_as_nothing() -> None:
    window = Window(Clock())
    reading = window.read()
    assert (reading.models, reading.tiers, reading.device_ms, reading.seconds) == ({}, {}, 0, 0)
    assert (reading.tokens_per_second(DEFAULT), reading.share(DEFAULT)) == (0, 0)
    assert (window.first_token(DEFAULT), window.last("m"), window.device_ms(DEFAULT)) == (Percentiles(), None, 0)


def test_a_steady_stream_shows_its_speed_from_the_start_on() -> None:
    clock = Clock()
    window = Window(clock)
    for _ in range(100):  # a token every 40 ms
        clock.now += 0.04
        window.step(step(("default", 40.0, 1)))
        assert window.read().tokens_per_second(DEFAULT) == pytest.approx(25)
    for _ in range(1000):
        clock.now += 0.04
        window.step(step(("default", 40.0, 1)))
    reading = window.read()
    assert reading.tokens_per_second(DEFAULT) == pytest.approx(25, rel=0.01)
    assert reading.models["m"].ms == pytest.approx(reading.seconds * 1000, rel=0.01)
    assert STEPS_S <= reading.seconds <= STEPS_S + BUCKET_S


def test_shares_are_of_what_the_device_computed_for_all_models() -> None:
    clock = Clock()
    window = Window(clock)
    window.step(step(("ultrafast", 60.0, 4), ("default", 20.0, 1), decode=5, prefill=3))
    window.step(step(("flex", 20.0, 1), model="n"))
    reading = window.read()
    assert [reading.share(key) for key in (ULTRA, DEFAULT, ("n", "flex"), ("n", "default"))] == [0.6, 0.2, 0.2, 0]
    assert reading.models["m"] == ModelSum(steps=1, ms=80.0, decode_rows=5, prefill_rows=3)


def test_what_is_old_is_forgotten_but_not_from_the_totals_and_the_last_step() -> None:
    clock = Clock()
    window = Window(clock)
    window.step(step(("default", 40.0, 1)))
    clock.now += STEPS_S + BUCKET_S
    reading = window.read()
    assert (reading.models, reading.tokens_per_second(DEFAULT)) == ({}, 0)
    assert window.device_ms(DEFAULT) == 40.0
    last = window.last("m")
    assert last is not None
    assert last.kv_used == 7


def test_memory_is_bounded_however_many_steps() -> None:
    clock = Clock()
    window = Window(clock)
    for _ in range(20_000):
        clock.now += 0.003
        window.step(step(("default", 3.0, 1)))
        window.ttft(*DEFAULT, 0.5)
    assert len(window._buckets) <= STEPS_S / BUCKET_S + 1
    assert window.first_token(DEFAULT).samples == TTFT_SAMPLES


def test_first_tokens_are_of_the_last_minutes_and_the_last_samples() -> None:
    clock = Clock()
    window = Window(clock)
    window.ttft(*DEFAULT, 100.0)
    clock.now += TTFT_S
    for number in range(10):
        window.ttft(*DEFAULT, float(number))
    assert window.first_token(DEFAULT).samples == 11
    clock.now += 0.1
    assert window.first_token(DEFAULT) == Percentiles(p50=4.0, p95=9.0, samples=10)
    assert window.first_token(ULTRA).samples == 0


@given(samples=st.lists(st.floats(0, 1000), min_size=1, max_size=300))
def test_percentiles_are_samples_in_order(samples: list[float]) -> None:
    found = percentiles(samples)
    assert found.p50 is not None
    assert found.p95 is not None
    assert found.samples == len(samples)
    for percent, value in ((50, found.p50), (95, found.p95)):
        assert value in samples
        assert sum(sample <= value for sample in samples) * 100 >= percent * len(samples)
        assert sum(sample < value for sample in samples) * 100 < percent * len(samples)


_Tiers = list[tuple[ServiceTier, float, int]]
_steps = st.tuples(
    st.floats(0, 4),  # seconds since the step before
    st.sampled_from(["m", "n"]),
    st.lists(
        st.tuples(st.sampled_from(["ultrafast", "default", "flex"]), st.floats(0, 500), st.integers(0, 64)),
        max_size=3,
        unique_by=lambda tier: tier[0],
    ),
)


@given(steps=st.lists(_steps, max_size=60), rest=st.floats(0, 12))
def test_the_sums_are_those_of_the_steps_in_the_window(steps: list[tuple[float, str, _Tiers]], rest: float) -> None:
    clock = Clock(0.0)
    window = Window(clock)
    seen = []
    for pause, model, tiers in steps:
        clock.now += pause
        stats = step(*tiers, model=model)
        window.step(stats)
        seen.append((clock.now, stats))
    clock.now += rest
    first = (clock.now // BUCKET_S - STEPS_S / BUCKET_S) * BUCKET_S
    counted = [stats for at, stats in seen if at >= first]
    reading = window.read()
    for model in ("m", "n"):
        done = reading.models.get(model, ModelSum())
        assert done.steps == sum(stats.model == model for stats in counted)
        for tier in ("ultrafast", "default", "flex"):
            own = [t for stats in counted if stats.model == model for t in stats.tiers if t.tier == tier]
            had = reading.tiers.get((model, tier))
            assert (had.tokens if had else 0) == sum(t.tokens for t in own)
            assert (had.ms if had else 0.0) == pytest.approx(sum(t.ms for t in own))
            assert reading.tokens_per_second((model, tier)) >= 0
    shares = [reading.share(key) for key in reading.tiers]
    assert not shares or sum(shares) <= 1.0001
