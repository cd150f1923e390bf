"""Permits: counted exactly, given back exactly once, in the tier that has room."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import ExitStack, suppress
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.config import Config
from twospeed.errors import ApiError
from twospeed.gateway.admission import Admission
from twospeed.types import TIERS, ModelInfo, ServiceTier


def configured(**tiers: Any) -> Config:
    return Config.model_validate(
        {
            "version": 1,
            "server": {"max_queue": 3},
            "service_tiers": tiers,
            "models": {"fast": {"backend": "fake", "slots": 2}, "smart": {"backend": "fake", "slots": 1}},
        }
    )


CONFIG = configured()


def refused(
    admission: Admission,
    model: str,
    sequences: int,
    tier: ServiceTier = "default",
    patience_s: float | None = None,
) -> ApiError:
    with pytest.raises(ApiError) as caught, admission.permit(model, tier, sequences, patience_s=patience_s):
        pass
    return caught.value


def counts(admission: Admission) -> dict[tuple[str, str], int]:
    """What is held, where anything is."""
    rooms = {(model, tier): admission.room(model, tier) for model in ("fast", "smart") for tier in TIERS}
    return {key: room.held for key, room in rooms.items() if room.held}


def test_slots_and_queue_are_the_limit_and_neither_models_nor_tiers_share_it() -> None:
    admission = Admission(CONFIG)
    with (
        admission.permit("fast", "default", 4),
        admission.permit("fast", "default", 1),
        admission.permit("smart", "default", 4),
        admission.permit("fast", "flex", 5),
    ):
        assert refused(admission, "fast", 1).code == "queue_full"
        assert refused(admission, "smart", 1).code == "queue_full"
        assert refused(admission, "fast", 1, "flex").code == "resource_unavailable"
        assert (admission.held("fast"), admission.held("smart")) == (10, 4)
    assert counts(admission) == {}


def test_over_its_limit_a_tier_is_downgraded_and_counts_as_default() -> None:
    admission = Admission(configured(ultrafast={"seats": 1}))
    with admission.permit("fast", "ultrafast", 1) as first, admission.permit("fast", "ultrafast", 1) as second:
        assert (first.tier, second.tier) == ("ultrafast", "default")
        assert counts(admission) == {("fast", "ultrafast"): 1, ("fast", "default"): 1}
        with admission.permit("fast", "ultrafast", 4) as third:
            assert third.tier == "default"
            assert refused(admission, "fast", 1, "ultrafast").code == "queue_full", "default is full too"
    assert counts(admission) == {}


def test_over_its_limit_a_tier_that_rejects_is_refused_at_once() -> None:
    admission = Admission(configured(ultrafast={"seats": 1, "over": "reject"}))
    with admission.permit("fast", "ultrafast", 1):
        error = refused(admission, "fast", 1, "ultrafast")
        assert (error.status, error.code) == (429, "queue_full")
        assert error.retry_after
        with admission.permit("fast", "default", 5):
            pass
    assert refused(admission, "fast", 2, "ultrafast").param == "n"


@pytest.mark.parametrize(("tier", "code"), [("priority", "queue_full"), ("flex", "resource_unavailable")])
def test_a_tier_without_seats_is_closed(tier: ServiceTier, code: str) -> None:
    admission = Admission(configured(**{tier: {"seats": 0, "over": "reject"}}))
    assert refused(admission, "fast", 1, tier).code == code


def test_what_could_never_be_admitted_is_the_clients_mistake() -> None:
    error = refused(Admission(CONFIG), "fast", 6)
    assert (error.code, error.param) == ("invalid_value", "n")


def test_seats_come_from_the_models_measured_speed_once_it_is_loaded() -> None:
    known: dict[str, ModelInfo] = {}
    admission = Admission(configured(ultrafast={"min_tok_s": "auto"}), info=known.get)
    assert admission.room("fast", "ultrafast").seats == 2
    known["fast"] = ModelInfo(
        description="", context=1, kv_tokens=1, slots=2, vocab_size=1, parameters=1, size_bytes=1, chat_template=True,
        infill=True, fingerprint="", stream_ms=[10, 21],
    )  # fmt: skip
    assert admission.room("fast", "ultrafast").seats == 1


def test_a_tier_with_fewer_seats_than_slots_keeps_its_line_in_order() -> None:
    async def run() -> None:
        admission = Admission(configured(priority={"seats": 1, "max_queue": 3}))
        order: list[str] = []

        async def one(name: str, gone: asyncio.Event) -> None:
            with admission.permit("fast", "priority", 1) as permit:
                await permit.seat()
                order.append(name)
                await gone.wait()

        events = [asyncio.Event() for _ in "abcd"]
        tasks = [asyncio.create_task(one(name, event)) for name, event in zip("abcd", events, strict=True)]
        await asyncio.sleep(0.01)
        room = admission.room("fast", "priority")
        assert (order, room.seated, room.waiting) == (["a"], 1, 3)
        tasks[1].cancel()  # one that waits leaves the line
        events[0].set()
        await asyncio.sleep(0.01)
        assert order == ["a", "c"]
        admission.reload(configured(priority={"seats": 2, "max_queue": 3}))
        await asyncio.sleep(0.01)
        assert order == ["a", "c", "d"], "a seat more is taken at once"
        events[2].set()
        events[3].set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert counts(admission) == {}

    asyncio.run(run())


def test_where_the_engine_keeps_the_line_nobody_waits_here() -> None:
    async def run() -> None:
        admission = Admission(CONFIG)
        with admission.permit("smart", "default", 1), admission.permit("smart", "default", 1) as second:
            assert admission.room("smart", "default").waiting == 1
            await asyncio.wait_for(second.seat(), 1)

    asyncio.run(run())


def test_who_would_wait_longer_than_it_likes_is_refused_with_the_time_to_come_back() -> None:
    now = [0.0]
    admission = Admission(CONFIG, clock=lambda: now[0])
    with admission.permit("smart", "default", 1, patience_s=0) as permit:
        permit.served()
        now[0] = 8.0  # so long it has been at it
        error = refused(admission, "smart", 1, patience_s=7.5)
        assert (error.status, error.code, error.retry_after) == (429, "queue_threshold_exceeded", 1)
        with admission.permit("smart", "default", 1, patience_s=8):
            assert refused(admission, "smart", 1, patience_s=15).retry_after == 1
            assert refused(admission, "smart", 1, patience_s=6).retry_after == 10
        now[0] = 20.0
    with admission.permit("smart", "default", 1):
        error = refused(admission, "smart", 1, patience_s=19)
        assert "20.0 s" in error.message
        with admission.permit("smart", "default", 1, patience_s=20):
            pass
    assert counts(admission) == {}


def test_after_close_nobody_enters_but_who_is_in_may_finish() -> None:
    async def run() -> None:
        admission = Admission(CONFIG)
        with admission.permit("fast", "default", 1):
            admission.close()
            assert refused(admission, "fast", 1).code == "shutting_down"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(admission.idle(), 0.01)
        await asyncio.wait_for(admission.idle(), 1)

    asyncio.run(run())


def test_a_permit_is_given_back_once() -> None:
    permit = Admission(CONFIG).permit("fast", "default", 1)
    with permit:
        pass
    with pytest.raises(RuntimeError):
        permit.__exit__(None, None, None)


def test_a_reload_changes_limits_and_keeps_the_counts() -> None:
    admission = Admission(configured(flex={"max_queue": 5}))
    with ExitStack() as stack:
        for _ in range(7):
            stack.enter_context(admission.permit("fast", "flex", 1))
        admission.reload(configured(flex={"seats": 1, "max_queue": 1}))
        room = admission.room("fast", "flex")
        assert (room.seats, room.queue, room.held) == (1, 1, 7)
        assert refused(admission, "fast", 1, "flex").code == "resource_unavailable"
    assert counts(admission) == {}
    with admission.permit("fast", "flex", 1), admission.permit("fast", "flex", 1):
        assert refused(admission, "fast", 1, "flex").code == "resource_unavailable"


Job = tuple[str, ServiceTier, int, str, int, float | None]
JOBS = st.lists(
    st.tuples(
        st.sampled_from(["fast", "smart"]),
        st.sampled_from(get_args(ServiceTier)),
        st.integers(1, 7),
        st.sampled_from(["finish", "fail", "cancelled", "reload"]),
        st.integers(0, 3),
        st.none() | st.floats(0, 3),
    ),
    max_size=40,
)
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        tier: st.fixed_dictionaries(
            {"seats": st.integers(tier == "default", 3) | st.just("auto"), "max_queue": st.integers(0, 3)},
            optional={} if tier in ("default", "flex") else {"over": st.sampled_from(["downgrade", "reject"])},
        )
        for tier in TIERS
    },
)


@given(JOBS, LIMITS, LIMITS)
def test_after_any_storm_with_reloads_the_counts_return_to_zero(
    jobs: list[Job], before: dict[str, Any], after: dict[str, Any]
) -> None:
    configs = [configured(**before), configured(**after)]

    async def one(admission: Admission, job: Job) -> None:
        model, tier, sequences, end, turns, patience_s = job
        room = admission.room(model, tier)
        with suppress(ApiError), admission.permit(model, tier, sequences, patience_s=patience_s) as permit:
            assert permit.tier in (tier, "default")
            now = admission.room(model, permit.tier)
            assert now.held <= now.seats + now.queue
            if permit.tier == tier:
                assert now.held == room.held + sequences
            if end == "reload":
                admission.reload(configs[turns % 2])
            await permit.seat()
            permit.served()
            for _ in range(turns):
                await asyncio.sleep(0)
            if end == "fail":
                raise ApiError("engine_error", "boom")
            if end == "cancelled":
                await asyncio.Event().wait()

    async def run() -> None:
        admission = Admission(configs[0], clock=itertools.count().__next__)
        tasks = [asyncio.create_task(one(admission, job)) for job in jobs]
        for _ in range(8):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, AssertionError):
                raise result
        assert counts(admission) == {}
        assert all(admission.room(model, tier).waiting == 0 for model in ("fast", "smart") for tier in TIERS)
        await asyncio.wait_for(admission.idle(), 1)

    asyncio.run(run())
