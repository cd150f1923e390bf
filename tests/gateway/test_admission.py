"""Permits: counted exactly, given back exactly once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.config import Config
from twospeed.errors import ApiError
from twospeed.gateway.admission import Admission

CONFIG = Config.model_validate(
    {
        "version": 1,
        "server": {"max_queue": 3},
        "models": {"fast": {"backend": "fake", "slots": 2}, "smart": {"backend": "fake", "slots": 1}},
    }
)


def refused(admission: Admission, model: str, sequences: int) -> str:
    with pytest.raises(ApiError) as caught, admission.permit(model, sequences):
        pass
    return caught.value.code


def test_slots_and_queue_are_the_limit_and_models_do_not_share_it() -> None:
    admission = Admission(CONFIG)
    with admission.permit("fast", 4), admission.permit("fast", 1), admission.permit("smart", 4):
        assert refused(admission, "fast", 1) == "queue_full"
        assert refused(admission, "smart", 1) == "queue_full"
        assert (admission.held("fast"), admission.held("smart")) == (5, 4)
    assert (admission.held("fast"), admission.held("smart")) == (0, 0)


def test_what_could_never_be_admitted_is_the_clients_mistake() -> None:
    assert refused(Admission(CONFIG), "fast", 6) == "invalid_value"


def test_after_close_nobody_enters_but_who_is_in_may_finish() -> None:
    async def run() -> None:
        admission = Admission(CONFIG)
        with admission.permit("fast", 1):
            admission.close()
            assert refused(admission, "fast", 1) == "shutting_down"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(admission.idle(), 0.01)
        await asyncio.wait_for(admission.idle(), 1)

    asyncio.run(run())


def test_a_permit_is_given_back_once() -> None:
    permit = Admission(CONFIG).permit("fast", 1)
    with permit:
        pass
    with pytest.raises(RuntimeError):
        permit.__exit__(None, None, None)


JOBS = st.lists(
    st.tuples(
        st.sampled_from(["fast", "smart"]),
        st.integers(1, 7),
        st.sampled_from(["finish", "fail", "cancelled"]),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(JOBS)
def test_after_any_storm_the_counts_return_to_zero(jobs: list[tuple[str, int, str, int]]) -> None:
    async def one(admission: Admission, model: str, sequences: int, end: str, turns: int) -> None:
        with suppress(ApiError), admission.permit(model, sequences):
            assert 0 < admission.held(model) <= (5 if model == "fast" else 4)
            for _ in range(turns):
                await asyncio.sleep(0)
            if end == "fail":
                raise ApiError("engine_error", "boom")
            if end == "cancelled":
                await asyncio.Event().wait()

    async def run() -> None:
        admission = Admission(CONFIG)
        tasks = [asyncio.create_task(one(admission, *job)) for job in jobs]
        for _ in range(8):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (admission.held("fast"), admission.held("smart")) == (0, 0)
        await asyncio.wait_for(admission.idle(), 1)

    asyncio.run(run())
