"""Keys, hosts, and where a server may listen."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from twospeed.config import Config, Server
from twospeed.errors import ApiError
from twospeed.gateway.auth import (
    ANYONE,
    Hosts,
    Keys,
    Limits,
    Principal,
    StartRefusedError,
    check_exposure,
    is_loopback,
)

KEY = "sk-0123456789abcdef"
OTHER = "sk-fedcba9876543210"
MODELS = {"fast": {"backend": "fake", "aliases": ["gpt-4o-mini"]}, "smart": {"backend": "fake"}}


def configured(*more: dict[str, Any], **rest: Any) -> Config:
    """Key `a`, key `b`, and `more` of them."""
    keys = [{"name": "a", "key": KEY}, {"name": "b", "sha256": hashlib.sha256(OTHER.encode()).hexdigest()}, *more]
    return Config.model_validate({"version": 1, "models": MODELS, "server": {"api_keys": keys}} | rest)


KEYED = configured()


def test_without_keys_everybody_is_let_in() -> None:
    config = Config.model_validate({"version": 1, "models": MODELS})
    assert Keys(config).check(None, None) is ANYONE
    assert ANYONE.tiers == {"ultrafast", "priority", "default", "flex"}
    assert ANYONE.may_use("smart")


def test_each_key_has_a_name_and_a_namespace_of_its_own_that_tells_nothing_of_it() -> None:
    keys = Keys(KEYED)
    a, b = keys.check(f"Bearer {KEY}", None), keys.check(None, OTHER)
    assert (a.name, b.name) == ("a", "b")
    assert a.namespace
    assert a.namespace != b.namespace
    assert a.namespace not in hashlib.sha256(KEY.encode()).hexdigest()
    assert keys.check(f"bearer  {KEY} ", None) == a


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [(None, None), ("", ""), ("Bearer", None), ("Bearer wrong", None), (KEY, None), ("Bearer wrong", KEY), (None, "é")],
)
def test_anything_else_is_refused(authorization: str | None, x_api_key: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        Keys(KEYED).check(authorization, x_api_key)
    assert caught.value.status == 401


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "a.localhost", "LocalHost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_beyond_loopback_a_server_needs_keys_and_its_clients_no_certain_host() -> None:
    with pytest.raises(StartRefusedError, match="api_keys"):
        check_exposure(Server(host="0.0.0.0"))  # noqa: S104
    public = KEYED.server.model_copy(update={"host": "0.0.0.0"})  # noqa: S104
    check_exposure(public)
    Hosts(public).check("anything.example")
    with pytest.raises(ApiError):
        Hosts(public.model_copy(update={"allowed_hosts": ["llm.example"]})).check("anything.example")


THIRD = {"name": "c", "key": "sk-third-0123456789"}


def principal(key: dict[str, Any], **rest: Any) -> Principal:
    return Keys(configured(THIRD | key, **rest)).check(None, str(THIRD["key"]))


def test_with_keys_ultrafast_is_a_preview_that_nobody_is_in_until_named() -> None:
    assert principal({}).tiers == {"priority", "default", "flex"}
    assert "ultrafast" in principal({}, preview={"ultrafast": ["a", "c"]}).tiers
    assert "ultrafast" not in principal({}, preview={"ultrafast": ["a"]}).tiers
    assert "ultrafast" in principal({}, preview={"ultrafast": "all"}).tiers
    assert principal({}, preview={"flex": []}).tiers == {"priority", "default"}


def test_a_keys_own_list_narrows_what_the_preview_lets_it_into() -> None:
    key = {"service_tiers": ["ultrafast", "default"]}
    assert principal(key).tiers == {"default"}
    assert principal(key, preview={"ultrafast": "all"}).tiers == {"ultrafast", "default"}


def test_a_key_may_use_the_models_it_names_by_any_name() -> None:
    found = principal({"models": ["gpt-4o-mini"]})
    assert (found.may_use("fast"), found.may_use("smart")) == (True, False)
    assert principal({}).may_use("smart")


def test_a_keys_limits_and_default_tier_are_its_principals() -> None:
    key = {"max_concurrent": 2, "requests_per_minute": 3, "tokens_per_minute": 4, "default_tier": "flex"}
    found = principal(key)
    assert (found.limits, found.default_tier) == (Limits(2, 3, 4), "flex")


@pytest.mark.parametrize(
    ("key", "rest", "says"),
    [
        ({}, {"preview": {"ultrafast": ["a", "nobody"]}}, "preview.ultrafast: 'nobody' is the name of no key"),
        ({"default_tier": "ultrafast"}, {}, "server.api_keys\\[2\\].default_tier: 'c' is not in preview.ultrafast"),
        ({"default_tier": "flex", "service_tiers": ["default"]}, {}, "default_tier: 'flex' is not among"),
        ({"service_tiers": ["priority"]}, {}, "default_tier: 'default' is not among"),
        ({"models": ["fast", "nope"]}, {}, "server.api_keys\\[2\\].models: there is no model 'nope'"),
        ({"service_tiers": ["gold"]}, {}, "service_tiers"),
        ({"max_concurrent": 0}, {}, "max_concurrent"),
        ({}, {"preview": {"gold": "all"}}, "preview.gold"),
        ({}, {"preview": {"ultrafast": "some"}}, "preview.ultrafast"),
    ],
)
def test_keys_that_contradict_the_rest_are_configuration_errors(
    key: dict[str, Any], rest: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        configured(THIRD | key, **rest)
