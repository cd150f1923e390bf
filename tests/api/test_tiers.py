"""Every value of service_tier, entitled or not, over the limit or not, on both endpoints, streamed and whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
KEYS = {name: f"ts-{name}-0123456789abcdef" for name in ("insider", "outsider", "thrifty", "small", "counted")}
CONFIG = {
    "models": {"fast": {"backend": "fake", "slots": 2}, "smart": {"backend": "fake", "preload": False}},
    "server": {
        "api_keys": [
            {"name": "insider", "key": KEYS["insider"]},
            {"name": "outsider", "key": KEYS["outsider"], "service_tiers": ["default"]},
            {"name": "thrifty", "key": KEYS["thrifty"], "default_tier": "flex"},
            {"name": "small", "key": KEYS["small"], "models": ["fast"], "max_concurrent": 1},
            {"name": "counted", "key": KEYS["counted"], "requests_per_minute": 3, "tokens_per_minute": 60},
        ]
    },
    "preview": {"ultrafast": ["insider"]},
    "service_tiers": {
        "ultrafast": {"seats": 1},
        "priority": {"seats": 1, "max_queue": 0},
        "default": {"seats": 2, "max_queue": 1, "max_output": 2000},
        "flex": {"seats": 1, "max_queue": 0, "max_output": 50},
    },
}
VALUES = {
    "auto": "default", "default": "default", "flex": "flex", "priority": "priority", "fast": "priority",
    "scale": "priority", "ultrafast": "ultrafast", None: "default", "unset": "default",
}  # fmt: skip
LONG = {"model": "fast", "prompt": "abc", "max_tokens": 1500, "stream": True}


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module")
def tiers(serve: Any) -> Iterator[Any]:
    with serve(CONFIG, {"TWOSPEED_FAKE_STEP_MS": "5"}) as running:
        running.http.headers.update(as_("insider"))  # for /metrics
        running.wait_ready("fast")
        yield running
        running.wait_idle()


def body(path: str, tier: str | None, *, stream: bool, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "ab"}]} if path == CHAT else {"prompt": "ab", "max_tokens": 2}
    wanted = {} if tier == "unset" else {"service_tier": tier}
    return {"model": "fast", "stream": stream, "stream_options": {"include_usage": True}} | prompt | wanted | more


def echoes(answer: httpx.Response) -> set[str]:
    """The tiers that an answer names: its object or its chunks, and its header."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data")]
        assert done == "[DONE]"
        assert len(events) > 2
        named = {json.loads(event)["service_tier"] for event in events}
    else:
        named = {answer.json()["service_tier"]}
    return named | {answer.headers["x-twospeed-service-tier"]}


@contextmanager
def full(running: Any, *tiers: str) -> Iterator[None]:
    """While every place of these tiers is taken."""
    admission = running.gateway.admission
    stack = ExitStack()

    def take() -> None:
        for tier in tiers:
            room = admission.room("fast", tier)
            stack.enter_context(admission.permit("fast", tier, room.seats + room.queue))

    running.on_loop(take)
    try:
        yield
    finally:
        running.on_loop(stack.close)
    assert running.on_loop(lambda: admission.held("fast")) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("tier", VALUES)
def test_an_entitled_client_is_served_in_the_tier_it_asks_for(
    tiers: Any, tier: str | None, path: str, stream: bool
) -> None:
    answer = tiers.http.post(path, json=body(path, tier, stream=stream), headers=as_("insider"))
    assert answer.status_code == 200, answer.text
    assert echoes(answer) == {VALUES[tier]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("tier", VALUES)
@pytest.mark.parametrize("crowded", [False, True])
def test_others_are_told_which_tiers_they_may_use(
    tiers: Any, crowded: bool, tier: str | None, path: str, stream: bool
) -> None:
    with full(tiers, *(["ultrafast", "priority", "flex"] if crowded else [])):
        answer = tiers.http.post(path, json=body(path, tier, stream=stream), headers=as_("outsider"))
    if VALUES[tier] == "default":
        assert answer.status_code == 200, answer.text
        assert echoes(answer) == {"default"}
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"], error["param"]) == (
            400, "invalid_request_error", "service_tier_not_allowed", "service_tier",
        )  # fmt: skip
        assert "one of: default." in error["message"]
        assert "retry-after" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("tier", VALUES)
@pytest.mark.parametrize("default_full", [False, True])
def test_over_the_limit_it_is_default_or_refused(
    tiers: Any, default_full: bool, tier: str | None, path: str, stream: bool
) -> None:
    asked = VALUES[tier]
    with full(tiers, *{asked, *(["default"] if default_full else [])}):
        answer = tiers.http.post(path, json=body(path, tier, stream=stream), headers=as_("insider"))
    if asked in ("ultrafast", "priority") and not default_full:
        assert answer.status_code == 200, answer.text
        assert echoes(answer) == {"default"}
    else:
        code = "resource_unavailable" if asked == "flex" else "queue_full"
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (429, "rate_limit_error", code)
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["x-twospeed-service-tier"] == asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("name", ["insider", "outsider"])
@pytest.mark.parametrize("crowded", [False, True])
def test_what_is_no_tier_is_an_invalid_value(tiers: Any, crowded: bool, name: str, path: str, stream: bool) -> None:
    with full(tiers, *(["ultrafast", "priority", "default", "flex"] if crowded else [])):
        answer = tiers.http.post(path, json=body(path, "bogus", stream=stream), headers=as_(name))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "service_tier")
    assert "x-twospeed-service-tier" not in answer.headers


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("tier", ["auto", "unset", None])
def test_auto_and_nothing_are_the_keys_default_tier(tiers: Any, tier: str | None, path: str) -> None:
    answer = tiers.http.post(path, json=body(path, tier, stream=False), headers=as_("thrifty"))
    assert echoes(answer) == {"flex"}


def test_without_keys_every_tier_is_open(server: Any) -> None:
    for tier in ("ultrafast", "priority", "default", "flex"):
        answer = server.http.post(PLAIN, json=body(PLAIN, tier, stream=False))
        assert (answer.status_code, echoes(answer)) == (200, {tier})


# --- caps, limits, patience ------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_more_output_than_the_tier_gives_is_refused_by_the_fields_name(tiers: Any, field: str) -> None:
    answer = tiers.http.post(CHAT, json=body(CHAT, "flex", stream=False, **{field: 51}))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", field)
    assert "50" in error["message"]
    assert tiers.http.post(CHAT, json=body(CHAT, "flex", stream=False, **{field: 50})).status_code == 200


def test_where_no_limit_is_asked_for_the_tiers_applies(tiers: Any) -> None:
    content = [{"role": "user", "content": "x" * 80}]
    for tier, length in (("flex", 50), ("default", 80)):
        answer = tiers.http.post(CHAT, json=body(CHAT, tier, stream=False, messages=content))
        assert len(answer.json()["choices"][0]["message"]["content"]) == length


def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(tiers: Any) -> None:
    assert [model["id"] for model in tiers.http.get("/v1/models", headers=as_("small")).json()["data"]] == [
        "fast",
        "auto",
    ]
    assert len(tiers.http.get("/v1/models").json()["data"]) == 3
    refused = [
        tiers.http.post(PLAIN, json={"model": name, "prompt": "a"}, headers=as_("small")) for name in ("smart", "nope")
    ]
    refused.append(tiers.http.get("/v1/models/smart", headers=as_("small")))
    for answer in refused:
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert "There are: 'fast'." in answer.json()["error"]["message"]
    assert tiers.http.get("/v1/models/smart").status_code == 200


def test_sequences_in_flight_are_limited_by_key(tiers: Any) -> None:
    with tiers.http.stream("POST", PLAIN, json=LONG, headers=as_("small")) as stream:
        assert stream.status_code == 200
        answer = tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False), headers=as_("small"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert answer.headers["retry-after"] == "1"
        assert tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False)).status_code == 200, "of another key"
    tiers.wait_until(lambda: tiers.gateway.quotas.in_flight("small") == 0, "the stream is given up")
    assert tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False), headers=as_("small")).status_code == 200


def test_requests_and_tokens_a_minute_are_told_and_kept(tiers: Any) -> None:
    def ask(**more: Any) -> httpx.Response:
        answer: httpx.Response = tiers.http.post(
            PLAIN, json=body(PLAIN, "auto", stream=False) | more, headers=as_("counted")
        )
        return answer

    first = ask(max_tokens=1).headers
    assert first["x-ratelimit-limit-requests"] == "3"
    assert first["x-ratelimit-remaining-requests"] == "2"
    assert first["x-ratelimit-reset-requests"].endswith("s")
    assert first["x-ratelimit-limit-tokens"] == "60"
    assert 50 <= int(first["x-ratelimit-remaining-tokens"]) < 60, "what it used is taken off"
    assert ask(temperature=9).status_code == 400
    second = ask(stream=True, max_tokens=200)
    assert second.headers["x-ratelimit-remaining-requests"] == "1", "a mistake doesn't count"
    third = ask()
    assert (third.status_code, third.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert third.headers["x-ratelimit-remaining-tokens"] == "0"
    assert 100 < int(third.headers["retry-after"]) <= 180
    assert "x-ratelimit-limit-tokens" not in tiers.http.get("/v1/models", headers=as_("counted")).headers
    assert "x-ratelimit-limit-tokens" not in tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False)).headers


@pytest.mark.parametrize(("header", "field"), [("0", None), (None, 0), ("0", 100000), ("00", None)])
def test_who_will_not_wait_is_refused_where_it_would_have_to(tiers: Any, header: str | None, field: Any) -> None:
    headers = as_("insider") | ({} if header is None else {"queue_threshold": header})
    request = body(PLAIN, "default", stream=False) | ({} if field is None else {"queue_threshold": field})
    assert tiers.http.post(PLAIN, json=request, headers=headers).status_code == 200, "it need not"
    stack = ExitStack()
    tiers.on_loop(lambda: stack.enter_context(tiers.gateway.admission.permit("fast", "default", 2)))
    try:
        answer = tiers.http.post(PLAIN, json=request, headers=headers)
    finally:
        tiers.on_loop(stack.close)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_threshold_exceeded")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize("header", ["", "soon", "-1", "1.5e3", "nan", "99999999999", "86400001"])
def test_a_bad_queue_threshold_header_is_named(tiers: Any, header: str) -> None:
    headers = as_("insider") | {"queue_threshold": header}
    error = tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False), headers=headers).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "queue_threshold")


@pytest.mark.parametrize("value", [-1, "100", True, 86_400_001, []])
def test_a_bad_queue_threshold_field_is_named(tiers: Any, value: Any) -> None:
    error = tiers.http.post(PLAIN, json=body(PLAIN, "auto", stream=False, queue_threshold=value)).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "queue_threshold")


def test_a_seat_that_comes_free_is_taken_by_the_one_who_waits_for_it(start_server: Any) -> None:
    running = start_server({"service_tiers": {"priority": {"seats": 1, "max_queue": 1}}})
    running.wait_ready("fast")
    stack, admission = ExitStack(), running.gateway.admission
    running.on_loop(lambda: stack.enter_context(admission.permit("fast", "priority", 1)))
    answers: list[httpx.Response] = []
    request = body(PLAIN, "priority", stream=False)
    waiting = threading.Thread(target=lambda: answers.append(running.http.post(PLAIN, json=request)))
    waiting.start()
    running.wait_until(lambda: running.on_loop(lambda: admission.room("fast", "priority").waiting) == 1, "it waits")
    assert not answers
    running.on_loop(stack.close)
    waiting.join(20)
    assert echoes(answers[0]) == {"priority"}


def test_a_wait_for_a_seat_ends_after_the_tiers_queue_wait_s(start_server: Any) -> None:
    running = start_server({"service_tiers": {"priority": {"seats": 1, "max_queue": 1, "queue_wait_s": 0.05}}})
    running.wait_ready("fast")
    stack, admission = ExitStack(), running.gateway.admission
    running.on_loop(lambda: stack.enter_context(admission.permit("fast", "priority", 1)))
    answer = running.http.post(PLAIN, json=body(PLAIN, "priority", stream=False))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert "0.05 s" in answer.json()["error"]["message"]
    running.on_loop(stack.close)
    running.wait_idle()
