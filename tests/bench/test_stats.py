from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.bench import stats

numbers = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)
steps = st.lists(st.floats(0.001, 10), min_size=1, max_size=40)


def rising(parts: list[float], start: float = 0.0) -> list[float]:
    times = [start]
    for part in parts:
        times.append(times[-1] + part)
    return times


@given(numbers)
def test_percentiles_rise_from_the_smallest_to_the_largest(values: list[float]) -> None:
    found = [stats.percentile(values, p) for p in (0, 25, 50, 75, 100)]
    assert found[0] == min(values)
    assert found[-1] == max(values)
    assert all(b - a >= -1e-6 for a, b in pairwise(found))


def test_the_median_of_an_even_count_lies_between() -> None:
    assert stats.median([4, 1, 3, 2]) == 2.5


def test_a_rate_counts_the_gaps_and_not_the_first_token() -> None:
    assert stats.decode_rate([1.0, 1.5, 2.0], 3) == 2.0
    assert stats.decode_rate([1.0], 1) is None
    assert stats.decode_rate([1.0, 1.0], 2) is None


@given(steps)
def test_the_gaps_of_a_stream_sum_to_its_length(parts: list[float]) -> None:
    times = rising(parts)
    assert sum(stats.gaps(times)) == pytest.approx(times[-1])
    assert stats.gaps_touching(times, -1, times[-1] + 1) == stats.gaps(times)


def test_gaps_that_reach_into_the_window_count_whole() -> None:
    times = [0.0, 1.0, 4.0, 5.0, 9.0]
    assert stats.gaps_touching(times, 3.0, 6.0) == [3.0, 1.0, 4.0]
    assert stats.gaps_touching(times, 4.0, 5.0) == [1.0]
    assert stats.gaps_touching(times, 10.0, 11.0) == []


@given(st.lists(steps, min_size=1, max_size=8), st.lists(st.floats(0, 5), min_size=8, max_size=8))
def test_in_the_common_window_every_stream_decodes(streams: list[list[float]], starts: list[float]) -> None:
    all_times = [rising(parts, start) for parts, start in zip(streams, starts, strict=False)]
    window = stats.common_window(all_times)
    if window is None:
        assert max(t[0] for t in all_times) >= min(t[-1] for t in all_times)
    else:
        assert all(times[0] <= window[0] < window[1] <= times[-1] for times in all_times)


def test_streams_that_decode_at_a_constant_rate_add_up() -> None:
    one = [i / 10 for i in range(51)]
    late = [0.05 + i / 20 for i in range(201)]
    window = stats.common_window([one, late])
    assert window == (0.05, 5.0)
    assert stats.aggregate_rate([(one, 51), (late, 201)], *window) == pytest.approx(30, rel=0.02)


def test_tokens_without_an_event_of_their_own_are_counted() -> None:
    times = [float(i) for i in range(11)]
    assert stats.aggregate_rate([(times, 22)], 0.0, 10.0) == 2.0


def test_a_machine_that_slows_down_does_not_change_the_ratio() -> None:
    assert stats.neighbour_ratio([9.0, 7.0], [10.0, 8.0, 6.0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="3 baselines"):
        stats.neighbour_ratio([1.0, 1.0], [1.0, 1.0])
