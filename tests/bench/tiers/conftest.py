"""Samples as a measured stream gives them, and the cell they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twospeed.bench.tiers import figures
from twospeed.bench.tiers.results import Cell, Sample, Tier


def _sample(tier: Tier = "ultrafast", at: list[float] | None = None, **changes: Any) -> Sample:
    """A stream with a token every 10 ms, of 4 characters each, unless told otherwise."""
    times = [100.0 + 10 * i for i in range(11)] if at is None else at
    usual: dict[str, Any] = {"waited_ms": 500.0, "whole": True, "told": bool(times), "tokens": len(times)}
    usual |= {"text": "abcd" * len(times), "at_ms": times, "served": tier if times else None}
    whole = {"workload": "chat", "load": 16, "tier": tier, "round": 0, "item": 0} | usual | changes
    return Sample(**whole)


def _cell(samples: list[Sample]) -> Cell:
    one = samples[0]
    return figures.cell(one.workload, one.load, one.tier, samples, figures.chars_per_token(samples))


@pytest.fixture(scope="session")
def sample() -> Callable[..., Sample]:
    return _sample


@pytest.fixture(scope="session")
def cell() -> Callable[[list[Sample]], Cell]:
    return _cell
