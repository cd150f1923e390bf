"""What a key may use, with a clock that is told the time."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.errors import ApiError
from twospeed.gateway.auth import ANYONE, Limits, Principal
from twospeed.gateway.quotas import Bucket, Meter, Quotas, duration
from twospeed.types import Chunk, Usage


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def key(concurrent: int | None = None, requests: int | None = None, tokens: int | None = None) -> Principal:
    return Principal(name="k", namespace="", limits=Limits(concurrent, requests, tokens))


def last(index: int, prompt: int, written: int) -> Chunk:
    usage = Usage(prompt_tokens=prompt, completion_tokens=written, cached_tokens=0)
    return Chunk(index=index, text="", tokens=0, finish_reason="stop", usage=usage)


def refused(quotas: Quotas, principal: Principal, sequences: int = 1) -> ApiError:
    with pytest.raises(ApiError) as caught:
        quotas.check(principal, sequences)
    return caught.value


def test_a_key_without_limits_has_no_headers_and_is_never_refused() -> None:
    quotas = Quotas(Clock())
    with ExitStack() as stack:
        for _ in range(100):
            quotas.check(ANYONE, 16)
            stack.enter_context(quotas.hold(ANYONE, 16))
    assert quotas.headers(ANYONE) == {}
    assert quotas.in_flight("") == 0


def test_requests_a_minute_are_used_up_and_come_back_evenly() -> None:
    clock = Clock()
    quotas, two = Quotas(clock), key(requests=2)
    for remaining in ("1", "0"):
        quotas.check(two, 1)
        with quotas.hold(two, 1):
            assert quotas.headers(two)["x-ratelimit-remaining-requests"] == remaining
    error = refused(quotas, two)
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 30)
    assert quotas.headers(two) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    clock.now += 29.5
    assert refused(quotas, two).retry_after == 1
    clock.now += 0.5
    quotas.check(two, 1)


def test_tokens_are_charged_when_used_and_a_debt_is_waited_for() -> None:
    clock = Clock()
    quotas, some = Quotas(clock), key(tokens=60)
    quotas.check(some, 1)
    with quotas.hold(some, 1) as meter:
        meter.chunk(last(0, 50, 40), 0)
        assert quotas.headers(some)["x-ratelimit-remaining-tokens"] == "60"
    assert quotas.headers(some)["x-ratelimit-remaining-tokens"] == "0"
    assert quotas.headers(some)["x-ratelimit-reset-tokens"] == "1m30s"
    assert refused(quotas, some).retry_after == 31
    clock.now += 31
    quotas.check(some, 1)


def test_what_a_client_that_left_was_sent_is_charged_too() -> None:
    quotas, some = Quotas(Clock()), key(tokens=60)
    with suppress(ZeroDivisionError), quotas.hold(some, 1) as meter:
        meter.chunk(Chunk(index=0, text="a", tokens=3), 0)
        meter.chunk(Chunk(index=0, text="b", tokens=2), 0)
        raise ZeroDivisionError
    assert quotas.headers(some)["x-ratelimit-remaining-tokens"] == "55"
    assert quotas.in_flight("k") == 0


def test_a_prompt_counts_once_for_all_its_sequences() -> None:
    meter = Meter()
    meter.chunk(Chunk(index=0, text="a", tokens=7), 0)
    for index in range(4):  # two sequences of each of two prompts
        meter.chunk(last(index, 100 * (index // 2 + 1), 10), index // 2)
    assert meter.tokens == 100 + 200 + 4 * 10


def test_sequences_in_flight_are_bounded() -> None:
    quotas, three = Quotas(Clock()), key(concurrent=3)
    error = refused(quotas, three, 4)
    assert (error.code, error.param) == ("invalid_value", "n")
    quotas.check(three, 2)
    with quotas.hold(three, 2):
        quotas.check(three, 1)
        error = refused(quotas, three, 2)
        assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 1)
    quotas.check(three, 3)


def test_new_limits_find_the_old_use_and_what_is_in_flight() -> None:
    quotas = Quotas(Clock())
    with quotas.hold(key(requests=10), 2):
        assert quotas.headers(key(requests=4))["x-ratelimit-remaining-requests"] == "3"
        assert quotas.headers(key(requests=10))["x-ratelimit-remaining-requests"] == "9"
        assert refused(quotas, key(concurrent=2)).code == "rate_limit_exceeded"
        assert quotas.headers(key()) == {}


@given(st.integers(1, 1000), st.lists(st.tuples(st.floats(0, 100), st.floats(0, 500)), max_size=30))
def test_a_bucket_never_gives_more_than_a_full_one_and_its_rate(
    per_minute: int, events: list[tuple[float, float]]
) -> None:
    bucket, now, taken = Bucket(per_minute, 0.0), 0.0, 0.0
    for pause, amount in events:
        now += pause
        wait = bucket.seconds_until(amount, now)
        if amount <= bucket.level(now):
            assert wait == 0
            bucket.take(amount, now)
            taken += amount
        elif amount <= per_minute:
            assert bucket.level(now + wait) == pytest.approx(amount, abs=1e-6)
            now += wait
        assert bucket.level(now) <= per_minute
        assert taken <= per_minute + now * per_minute / 60 + 1e-6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-1, "0s"),
        (0.00001, "1ms"),
        (0.0123, "12ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.999, "1m0s"),
        (360, "6m0s"),
        (86.4, "1m26.4s"),
        (3723, "1h2m3s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0.001, 1e5))
def test_a_duration_reads_back(seconds: float) -> None:
    text, total = duration(seconds), 0.0
    if text.endswith("ms"):
        total = float(text[:-2]) / 1000
    else:
        for unit, factor in (("h", 3600), ("m", 60), ("s", 1)):
            head, found, rest = text.partition(unit)
            if found:
                total, text = total + float(head) * factor, rest
    assert math.isclose(total, seconds, abs_tol=0.006)
