"""Fake runners in this process take no time, whatever servers of other tests were told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="package", autouse=True)
def no_delays() -> Iterator[None]:
    without = {key: value for key, value in os.environ.items() if not key.startswith("TWOSPEED_FAKE_")}
    with mock.patch.dict(os.environ, without, clear=True):
        yield
