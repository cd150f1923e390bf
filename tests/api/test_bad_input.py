"""What is wrong with a request is said at once, by name, in one envelope, and never reaches the engine."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "fast", "messages": MESSAGES} | fields).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"model": "fast", "prompt": "hi"} | fields).encode()


def without(body: bytes, field: str) -> bytes:
    return json.dumps({key: value for key, value in json.loads(body).items() if key != field}).encode()


def message(**fields: Any) -> bytes:
    return chat(messages=[{"role": "user", "content": "hi"} | fields])


CASES: list[tuple[str, str, bytes, int, str, str | None]] = [
    ("empty body", CHAT, b"", 400, "invalid_json", None),
    ("no JSON", CHAT, b"{", 400, "invalid_json", None),
    ("invalid UTF-8", CHAT, b'{"model": "\xff"}', 400, "invalid_json", None),
    ("lone surrogate", CHAT, b'{"model": "\\ud800"}', 400, "invalid_json", None),
    ("deep nesting", CHAT, b"[" * 100_000, 400, "invalid_json", None),
    ("deep nesting inside", CHAT, b'{"a":' * 100_000, 400, "invalid_json", None),
    ("a list", CHAT, b"[]", 400, "invalid_value", None),
    ("null", CHAT, b"null", 400, "invalid_value", None),
    ("huge number", CHAT, b'{"seed": %s}' % (b"9" * 100_000), 400, "invalid_json", None),
    ("unknown model", CHAT, chat(model="nope"), 404, "model_not_found", "model"),
    ("no model", CHAT, without(chat(), "model"), 400, "missing_required_parameter", "model"),
    ("model null", CHAT, chat(model=None), 400, "invalid_value", "model"),
    ("no messages", CHAT, without(chat(), "messages"), 400, "missing_required_parameter", "messages"),
    ("empty messages", CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
    ("messages a string", CHAT, chat(messages="hi"), 400, "invalid_value", "messages"),
    ("message a string", CHAT, chat(messages=["hi"]), 400, "invalid_value", "messages[0]"),
    ("no role", CHAT, chat(messages=[{"content": "a"}]), 400, "missing_required_parameter", "messages[0].role"),
    ("unknown role", CHAT, message(role="king"), 400, "invalid_value", "messages[0].role"),
    ("content a number", CHAT, message(content=7), 400, "invalid_value", "messages[0].content"),
    ("content null", CHAT, message(content=None), 400, "invalid_value", "messages[0].content"),
    ("content an object", CHAT, message(content={}), 400, "invalid_value", "messages[0].content"),
    ("part a string", CHAT, message(content=["a"]), 400, "invalid_value", "messages[0].content[0]"),
    ("part without type", CHAT, message(content=[{"text": "a"}]), 400, "missing_required_parameter",
     "messages[0].content[0].type"),
    ("part without text", CHAT, message(content=[{"type": "text"}]), 400, "invalid_value",
     "messages[0].content[0].text"),
    ("text a number", CHAT, message(content=[{"type": "text", "text": 1}]), 400, "invalid_value",
     "messages[0].content[0].text"),
    ("image", CHAT, message(content=[IMAGE]), 400, "invalid_value", "messages[0].content[0].type"),
    ("arguments an object", CHAT,
     message(role="assistant", tool_calls=[{"id": "c", "function": {"name": "f", "arguments": {}}}]), 400,
     "invalid_value", "messages[0].tool_calls[0].function.arguments"),
    ("temperature 3", CHAT, chat(temperature=3), 400, "invalid_value", "temperature"),
    ("temperature a string", CHAT, chat(temperature="1"), 400, "invalid_value", "temperature"),
    ("temperature true", CHAT, chat(temperature=True), 400, "invalid_value", "temperature"),
    ("temperature NaN", CHAT, chat(temperature=float("nan")), 400, "invalid_value", "temperature"),
    ("top_p Infinity", CHAT, chat(top_p=float("inf")), 400, "invalid_value", "top_p"),
    ("top_p 1e999", CHAT, chat(top_p=0).replace(b'"top_p": 0', b'"top_p": 1e999'), 400, "invalid_value", "top_p"),
    ("temperature huge", CHAT, chat(temperature=10**400), 400, "invalid_value", "temperature"),
    ("NaN in an unknown field", CHAT, chat(x={"y": [float("nan")]}), 400, "invalid_value", "x.y[0]"),
    ("top_p -1", CHAT, chat(top_p=-1), 400, "invalid_value", "top_p"),
    ("min_p 2", CHAT, chat(min_p=2), 400, "invalid_value", "min_p"),
    ("top_k -2", CHAT, chat(top_k=-2), 400, "invalid_value", "top_k"),
    ("repeat_penalty 0", CHAT, chat(repeat_penalty=0), 400, "invalid_value", "repeat_penalty"),
    ("presence_penalty 3", CHAT, chat(presence_penalty=3), 400, "invalid_value", "presence_penalty"),
    ("max_tokens 0", CHAT, chat(max_tokens=0), 400, "invalid_value", "max_tokens"),
    ("max_tokens -1", CHAT, chat(max_tokens=-1), 400, "invalid_value", "max_tokens"),
    ("max_tokens 1.5", CHAT, chat(max_tokens=1.5), 400, "invalid_value", "max_tokens"),
    ("max_tokens a string", CHAT, chat(max_tokens="5"), 400, "invalid_value", "max_tokens"),
    ("max_tokens 2**70", CHAT, chat(max_tokens=2**70), 400, "invalid_value", "max_tokens"),
    ("max_completion_tokens 0", CHAT, chat(max_completion_tokens=0), 400, "invalid_value", "max_completion_tokens"),
    ("seed 2**64", CHAT, chat(seed=2**64), 400, "invalid_value", "seed"),
    ("n 0", CHAT, chat(n=0), 400, "invalid_value", "n"),
    ("n 17", CHAT, chat(n=17), 400, "invalid_value", "n"),
    ("stream a string", CHAT, chat(stream="yes"), 400, "invalid_value", "stream"),
    ("stream_options a list", CHAT, chat(stream_options=[]), 400, "invalid_value", "stream_options"),
    ("include_usage 1", CHAT, chat(stream_options={"include_usage": 1}), 400, "invalid_value",
     "stream_options.include_usage"),
    ("stop empty", CHAT, chat(stop=""), 400, "invalid_value", "stop"),
    ("stop five", CHAT, chat(stop=list("abcde")), 400, "invalid_value", "stop"),
    ("stop with empty", CHAT, chat(stop=["a", ""]), 400, "invalid_value", "stop[1]"),
    ("stop with a number", CHAT, chat(stop=[1]), 400, "invalid_value", "stop[0]"),
    ("stop a number", CHAT, chat(stop=1), 400, "invalid_value", "stop"),
    ("logit_bias key", CHAT, chat(logit_bias={"a": 1}), 400, "invalid_value", "logit_bias"),
    ("logit_bias value", CHAT, chat(logit_bias={"5": 101}), 400, "invalid_value", "logit_bias.5"),
    ("service_tier", CHAT, chat(service_tier="gold"), 400, "invalid_value", "service_tier"),
    ("template kwargs", CHAT, chat(chat_template_kwargs=[]), 400, "invalid_value", "chat_template_kwargs"),
    ("template kwargs 2**80", CHAT, chat(chat_template_kwargs={"a": [2**80]}), 400, "invalid_value",
     "chat_template_kwargs"),
    ("template kwargs messages", CHAT, chat(chat_template_kwargs={"messages": []}), 400, "invalid_value",
     "chat_template_kwargs"),
    ("tools", CHAT, chat(tools=[{"type": "function"}]), 400, "unsupported_parameter", "tools"),
    ("tool_choice", CHAT, chat(tool_choice="required"), 400, "unsupported_parameter", "tool_choice"),
    ("functions", CHAT, chat(functions=[{"name": "f"}]), 400, "unsupported_parameter", "functions"),
    ("response_format", CHAT, chat(response_format={"type": "json_object"}), 400, "unsupported_parameter",
     "response_format"),
    ("logprobs", CHAT, chat(logprobs=True), 400, "unsupported_parameter", "logprobs"),
    ("top_logprobs", CHAT, chat(top_logprobs=3), 400, "unsupported_parameter", "top_logprobs"),
    ("modalities", CHAT, chat(modalities=["text", "audio"]), 400, "unsupported_parameter", "modalities"),
    ("audio", CHAT, chat(audio={"voice": "x"}), 400, "unsupported_parameter", "audio"),
    ("no prompt", TEXT, without(text(), "prompt"), 400, "missing_required_parameter", "prompt"),
    ("prompt null", TEXT, text(prompt=None), 400, "invalid_value", "prompt"),
    ("prompt empty list", TEXT, text(prompt=[]), 400, "invalid_value", "prompt"),
    ("prompt mixed", TEXT, text(prompt=["a", 1]), 400, "invalid_value", "prompt[1]"),
    ("prompt negative token", TEXT, text(prompt=[5, -1]), 400, "invalid_value", "prompt[1]"),
    ("prompt empty tokens", TEXT, text(prompt=[[5], []]), 400, "invalid_value", "prompt[1]"),
    ("prompt bad token", TEXT, text(prompt=[[5], [1.5]]), 400, "invalid_value", "prompt[1][0]"),
    ("suffix to tokens", TEXT, text(prompt=[5], suffix="a"), 400, "invalid_value", "suffix"),
    ("too many prompts", TEXT, text(prompt=["a"] * 1000), 400, "invalid_value", "n"),
    ("best_of", TEXT, text(best_of=2), 400, "unsupported_parameter", "best_of"),
    ("logprobs 0", TEXT, text(logprobs=0), 400, "unsupported_parameter", "logprobs"),
    ("max_tokens 0 (text)", TEXT, text(max_tokens=0), 400, "invalid_value", "max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_bad_input_is_refused_by_name(server: Any, case: tuple[str, str, bytes, int, str, str | None]) -> None:
    _, path, body, status, code, param = case
    steps = server.metric("step_seconds_count")
    started = time.perf_counter()
    answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
    seconds = time.perf_counter() - started
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert "<" not in error["message"], "the name of a union's branch"
    assert server.metric("step_seconds_count") == steps
    assert seconds < 0.1


def test_what_can_never_fit_is_refused_with_the_numbers(server: Any) -> None:
    answer = server.http.post(CHAT, content=chat(messages=[{"role": "user", "content": "a" * 5000}]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "4096" in answer.json()["error"]["message"]


def test_a_failed_template_is_the_clients_mistake(server: Any) -> None:
    answer = server.http.post(CHAT, content=message(role="tool"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_template")


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_engine_before_the_first_chunk_is_a_status(server: Any, stream: bool) -> None:
    answer = server.http.post(TEXT, content=text(prompt=[999_999], stream=stream))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
