"""How a call becomes what the engine is asked, within its tier's caps."""

from __future__ import annotations

from typing import Any

import pytest

from twospeed.config import SamplingDefaults, TierPolicy
from twospeed.errors import ApiError
from twospeed.gateway.auth import ANYONE
from twospeed.gateway.calls import Call
from twospeed.types import GenerateRequest, TextPrompt


def request(policy: TierPolicy, default: int | None = None, **call: Any) -> GenerateRequest:
    whole = Call(id="c", model="m", prompts=[TextPrompt("a")], principal=ANYONE, started=0.0, **call)
    (found,) = whole.requests("m", "flex", SamplingDefaults(max_tokens=default), policy)
    return found


@pytest.mark.parametrize(
    ("asked", "param", "default", "cap", "given"),
    [
        (None, "", None, None, None),
        (None, "", 30, None, 30),
        (None, "", None, 20, 20),
        (None, "", 30, 20, 20),
        (None, "", 10, 20, 10),
        (16, "", 30, 8, 8),  # /v1/completions' own default: nobody asked for it
        (20, "max_tokens", None, 20, 20),
        (5, "max_tokens", 30, 20, 5),
    ],
)
def test_output_is_what_was_asked_for_or_the_default_within_the_cap(
    asked: int | None, param: str, default: int | None, cap: int | None, given: int | None
) -> None:
    found = request(TierPolicy(max_output=cap), default, max_tokens=asked, max_tokens_param=param)
    assert found.output_cap == given
    assert found.max_tokens == (given if asked is not None else None)


def test_more_than_the_cap_is_refused_by_the_name_that_was_used() -> None:
    with pytest.raises(ApiError) as caught:
        request(TierPolicy(max_output=20), max_tokens=21, max_tokens_param="max_completion_tokens")
    assert (caught.value.code, caught.value.param) == ("invalid_value", "max_completion_tokens")


def test_the_tier_and_its_context_go_to_the_engine() -> None:
    found = request(TierPolicy(max_context=512))
    assert (found.tier, found.max_context) == ("flex", 512)
    assert request(TierPolicy()).max_context is None
