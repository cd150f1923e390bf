"""Keys, hosts, and where a server may listen."""

from __future__ import annotations

import hashlib

import pytest

from twospeed.config import Server
from twospeed.errors import ApiError
from twospeed.gateway.auth import ANYONE, Hosts, Keys, StartRefusedError, check_exposure, is_loopback

KEY = "sk-0123456789abcdef"
OTHER = "sk-fedcba9876543210"
KEYED = Server.model_validate(
    {
        "api_keys": [
            {"name": "a", "key": KEY},
            {"name": "b", "sha256": hashlib.sha256(OTHER.encode()).hexdigest()},
        ]
    }
)


def test_without_keys_everybody_is_let_in() -> None:
    assert Keys(Server()).check(None, None) is ANYONE


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
    public = KEYED.model_copy(update={"host": "0.0.0.0"})  # noqa: S104
    check_exposure(public)
    Hosts(public).check("anything.example")
    with pytest.raises(ApiError):
        Hosts(public.model_copy(update={"allowed_hosts": ["llm.example"]})).check("anything.example")
