"""Predicted step times: a staircase, corrected by what steps really take."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twospeed.engine.cost import Curves, StepCost

CURVES = Curves(
    last={1: 30.0, 2: 50.0, 4: 80.0, 8: 140.0, 12: 170.0, 16: 168.0, 32: 300.0, 64: 600.0},
    every={1: 30.0, 2: 55.0, 4: 90.0, 8: 150.0, 16: 180.0},
)

_ms = st.floats(0.01, 1e5)
_curves = st.builds(
    Curves,
    last=st.fixed_dictionaries(dict.fromkeys((1, 2, 3, 4, 8, 16, 32, 64), _ms)),
    every=st.fixed_dictionaries(dict.fromkeys((1, 2, 4, 8, 16), _ms)),
)


@given(_curves, st.integers(0, 64))
def test_more_rows_never_cost_less(curves: Curves, outputs: int) -> None:
    cost = StepCost(curves)
    prefill = [cost.ms(n, outputs) for n in range(max(1, outputs), 200)]
    decode = [cost.ms(n, n) for n in range(65)]
    for curve in (prefill, decode):
        assert all(more >= less * (1 - 1e-12) for less, more in itertools.pairwise(curve))


def test_measured_sizes_cost_what_was_measured_and_sizes_between_are_interpolated() -> None:
    cost = StepCost(CURVES)
    assert cost.ms(1, 1) == 30
    assert cost.ms(8, 0) == 140
    assert cost.ms(6, 0) == pytest.approx(110)
    assert cost.ms(48, 0) == pytest.approx(450)
    assert cost.ms(4, 4) == 90
    assert cost.ms(16, 2) == pytest.approx(168 + 5)


def test_a_tread_of_the_staircase_is_flat() -> None:
    assert StepCost(CURVES).ms(12, 0) == StepCost(CURVES).ms(16, 0) == 168


def test_beyond_the_last_measured_size_its_rate_goes_on() -> None:
    assert StepCost(CURVES).ms(128, 0) == pytest.approx(1200)


def test_no_rows_cost_nothing() -> None:
    assert StepCost(CURVES).ms(0, 0) == 0


def test_a_curve_without_a_one_row_point_is_refused() -> None:
    with pytest.raises(ValueError, match="one-row"):
        StepCost(Curves(last={2: 1.0}, every={1: 1.0}))


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.7, 4.0])
def test_a_machine_of_another_speed_is_learned(slower: float) -> None:
    cost = StepCost(CURVES)
    for i in range(60):
        rows = 1 + i % 8
        cost.observe(rows, rows, 0, slower * cost.base(rows, rows))
    assert cost.factor == pytest.approx(slower, rel=0.05)
    assert cost.ms(16, 1) == pytest.approx(slower * 168, rel=0.06)


def test_a_change_of_speed_is_learned_again_after_long_sameness() -> None:
    cost = StepCost(CURVES)
    for _ in range(3000):
        cost.observe(1, 1, 500, cost.base(1, 1))
    for _ in range(150):  # the memory is some 50 steps long
        cost.observe(1, 1, 500, 2 * cost.base(1, 1))
    assert cost.ms(1, 1, 500) == pytest.approx(60, rel=0.1)


def test_much_sameness_says_nothing_of_other_steps() -> None:
    cost = StepCost(CURVES)
    for i in range(3000):
        cost.observe(1, 1, 500, cost.base(1, 1) * (0.9, 1.0, 1.1)[i % 3])
    assert cost.ms(512, 1, 512 * 256) == pytest.approx(cost.base(512, 1), rel=0.2)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_the_cost_of_context_is_learned_apart_from_the_speed_by_small_and_big_models_alike(size: float) -> None:
    curves = Curves(*({n: size * ms for n, ms in curve.items()} for curve in (CURVES.last, CURVES.every)))
    cost = StepCost(curves)
    for i in range(100):
        rows, context = 1 + i % 6, 1000 * (i % 23)
        cost.observe(rows, rows, rows * context, 1.2 * cost.base(rows, rows) + size * 0.8 * rows * context / 1000)
    assert cost.factor == pytest.approx(1.2, rel=0.05)
    assert cost.per_context == pytest.approx(size * 0.8, rel=0.05)
    assert cost.ms(4, 4, 4 * 20_000) == pytest.approx(size * (1.2 * 90 + 64), rel=0.05)


def test_one_disturbed_step_moves_a_settled_prediction_little() -> None:
    cost = StepCost(CURVES)
    for _ in range(300):
        cost.observe(1, 1, 0, 30)
    cost.observe(1, 1, 0, 1e9)
    assert cost.ms(1, 1) < 1.6 * 30
    for _ in range(20):
        cost.observe(1, 1, 0, 30)
    assert cost.ms(1, 1) == pytest.approx(30, rel=0.05)


def test_endless_sameness_leaves_it_able_to_learn() -> None:
    cost = StepCost(CURVES)
    for _ in range(40_000):  # unbounded, what is unsure of the context would have overflowed
        cost.observe(1, 1, 0, 30)
    cost.observe(1, 1, 5000, 33)
    assert cost.ms(1, 1, 5000) == pytest.approx(33, rel=0.1)
    assert cost.ms(1, 1) == pytest.approx(30, rel=0.1)


_step = st.tuples(
    st.integers(1, 512),
    st.integers(0, 64),
    st.integers(0, 512 * 32768),
    st.floats(0, 1e7) | st.sampled_from([0.0, 1e-9, 1e12]),
)


@given(_curves, st.lists(_step, max_size=60))
@settings(deadline=None)
def test_whatever_steps_take_predictions_stay_positive_and_finite(
    curves: Curves, steps: list[tuple[int, int, int, float]]
) -> None:
    cost = StepCost(curves)
    for rows, outputs, context, ms in steps:
        before = cost.ms(rows, min(outputs, rows), context)
        cost.observe(rows, min(outputs, rows), context, ms)
        after = cost.ms(rows, min(outputs, rows), context)
        assert math.isfinite(after)
        assert after > 0
        if ms >= before and cost.factor < 5:
            assert after >= before * (1 - 1e-9), "learned the wrong way"
    assert 0.3 <= cost.factor <= 5
    assert cost.per_context >= 0
