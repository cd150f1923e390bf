"""`model: auto` over HTTP: who answers, and what the answer says of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from twospeed.api.facts import facts_of
from twospeed.gateway.route import Facts
from twospeed.models.store import StoreError
from twospeed.types import ChatPrompt, InfillPrompt, Prompt, TextPrompt, TokenPrompt

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HELLO = {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]}
CODE = HELLO | {"messages": [{"role": "user", "content": "```\nx\n```"}]}


@pytest.fixture(scope="module")
def both(serve: Any) -> Iterator[Any]:
    with serve({"models": {"fast": {"backend": "fake"}, "smart": {"backend": "fake"}}}) as running:
        running.wait_ready("fast")
        running.wait_ready("smart")
        yield running


def asked(running: Any, body: dict[str, Any], path: str = CHAT, **headers: str) -> tuple[str, str]:
    answer = running.http.post(path, json=body, headers={key.replace("_", "-"): text for key, text in headers.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()["model"], answer.headers["x-twospeed-route"]


def test_the_answer_names_the_model_and_the_rule(both: Any) -> None:
    assert asked(both, HELLO) == ("fast", "default")
    assert asked(both, CODE) == ("smart", "code")
    assert asked(both, HELLO, x_twospeed_route="smart") == ("smart", "header")
    assert asked(both, CODE | {"metadata": {"twospeed-route": "fast"}}, x_twospeed_route="smart") == (
        "fast", "metadata",
    )  # fmt: skip
    plain = {"model": "auto", "prompt": "Once upon a time", "max_tokens": 2}
    assert asked(both, plain, PLAIN) == ("fast", "default")
    assert asked(both, plain | {"suffix": "The end"}, PLAIN) == ("smart", "infill")
    assert asked(both, plain | {"prompt": list(range(2, 102)) * 20}, PLAIN) == ("smart", "long")


def test_every_chunk_of_a_stream_names_the_model_too(both: Any) -> None:
    answer = both.http.post(CHAT, json=CODE | {"stream": True})
    assert answer.headers["x-twospeed-route"] == "code"
    *chunks, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert done == "[DONE]"
    assert {json.loads(chunk)["model"] for chunk in chunks} == {"smart"}


def test_a_model_that_was_named_has_no_route(both: Any) -> None:
    answer = both.http.post(CHAT, json=HELLO | {"model": "fast"}, headers={"x-twospeed-route": "smart"})
    assert (answer.json()["model"], "x-twospeed-route" in answer.headers) == ("fast", False)


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        (HELLO, {"x-twospeed-route": "best"}, "x-twospeed-route"),
        (HELLO | {"metadata": {"twospeed-route": "best"}}, {}, "metadata.twospeed-route"),
        (HELLO | {"metadata": {"twospeed-route": 1}}, {}, "metadata"),
        (HELLO | {"metadata": ["a"]}, {}, "metadata"),
    ],
)
def test_a_wish_that_names_nothing_is_a_400(both: Any, body: Any, headers: dict[str, str], param: str) -> None:
    answer = both.http.post(CHAT, json=body, headers=headers)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", param)
    assert "best" not in error["message"]


class Never:
    """Stands in for the store: what it is asked for does not come, or fails."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.asked: list[str] = []

    def ensure(self, name: str, model: Any, progress: Any, *, cancelled: threading.Event) -> Path:
        self.asked.append(name)
        if not self.fails:
            cancelled.wait()
        raise StoreError("not to be had")


WEIGHTS = {"sources": ["file:/nowhere.gguf"]}


@pytest.mark.parametrize("fails", [True, False])
def test_a_model_that_failed_or_is_loading_is_passed_over(start_server: Any, fails: bool) -> None:
    running = start_server({"models": {"fast": {"backend": "fake"}, "smart": WEIGHTS}}, files=Never(fails=fails))
    running.wait_ready("fast")
    assert asked(running, CODE) == ("fast", "code; smart not ready")


def test_a_model_that_is_loaded_on_demand_begins_to_when_it_is_passed_over(start_server: Any) -> None:
    lazy = {"backend": "fake", "preload": False}
    running = start_server({"models": {"fast": {"backend": "fake"}, "smart": lazy}})
    running.wait_ready("fast")
    assert asked(running, CODE) == ("fast", "code; smart not ready")
    running.wait_ready("smart")
    assert asked(running, CODE) == ("smart", "code")


def test_where_no_model_is_ready_the_first_choice_is_waited_for(start_server: Any) -> None:
    models = {"fast": WEIGHTS, "smart": {"backend": "fake", "preload": False}}
    running = start_server({"models": models, "server": {"load_wait_s": 0.2}}, files=Never(fails=False))
    answer = running.http.post(CHAT, json=HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_not_ready")
    assert "'fast'" in answer.json()["error"]["message"]
    assert answer.headers["x-twospeed-route"] == "default"


def facts(*prompts: Prompt, metadata: Any = None, header: str | None = None, **more: Any) -> Facts:
    headers = [(b"x-twospeed-route", header.encode())] if header else []
    return facts_of(Request({"type": "http", "headers": headers}), list(prompts), metadata, **more)


def test_facts_of_a_conversation() -> None:
    roles = [("system", "abc"), ("user", "first"), ("assistant", "de"), ("user", "last"), ("tool", "f")]
    found = facts(ChatPrompt([{"role": role, "content": text} for role, text in roles]), header=" smart ")
    assert (found.prompt_chars, found.last_user, found.turns, found.header) == (15, "last", 2, "smart")
    assert not any([found.tools, found.schema, found.infill])


def test_facts_of_what_is_not_text_of_a_user() -> None:
    assert facts(TextPrompt("ab"), TextPrompt("abcd")) == Facts(prompt_chars=4, last_user="ab")
    assert facts(InfillPrompt("abc", "d")) == Facts(infill=True, prompt_chars=4, last_user="abc")
    assert facts(TokenPrompt([1, 2])) == Facts(prompt_chars=8)
    assert facts(ChatPrompt([{"role": "system", "content": ""}])) == Facts(turns=0)


def test_facts_of_what_is_asked_for_beside_the_prompt() -> None:
    hello = TextPrompt("")
    for kind, wanted in (("text", False), ("json_object", True), ("json_schema", True)):
        assert facts(hello, response_format={"type": kind}).schema is wanted
    assert facts(hello, response_format="json_object").schema is False
    assert facts(hello, tools=True).tools
    assert facts(hello, metadata={"a": "b", "c": 1, "d": None}).metadata == {"a": "b"}
