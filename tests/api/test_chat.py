"""POST /v1/chat/completions as clients see it, through the openai SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest

from twospeed.api.body import parse
from twospeed.api.chat import ChatCompletionRequest, to_prompt
from twospeed.errors import ApiError


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_chat_answers_with_usage_timings_and_what_served_it(server: Any) -> None:
    answer = server.openai().chat.completions.create(model="gpt-4o-mini", messages=user("Grüße 🙂"))
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model, answer.service_tier) == ("chat.completion", "fast", "default")
    assert answer.system_fingerprint
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Grüße 🙂")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert usage.completion_tokens_details.reasoning_tokens == 0
    timings = answer.timings
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    assert timings["predicted_n"] == usage.completion_tokens
    assert timings.keys() >= {
        "cache_n", "prompt_n", "prompt_ms", "prompt_per_second", "prompt_per_token_ms",
        "predicted_n", "predicted_ms", "predicted_per_second", "predicted_per_token_ms",
        "draft_n", "draft_n_accepted",
    }  # fmt: skip


def test_a_stream_begins_with_the_role_and_ends_with_the_finish_reason(server: Any) -> None:
    chunks = list(server.openai().chat.completions.create(model="fast", messages=user("Hé!"), stream=True))
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in chunks}) == 1
    assert {chunk.service_tier for chunk in chunks} == {"default"}
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "Hé!"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert deltas[-1].content is None
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[-1].timings["predicted_n"] > 0


def test_without_include_usage_no_chunk_has_the_field(server: Any) -> None:
    events = _events(server, {"model": "fast", "messages": user("Hi"), "stream": True})
    assert events[-1] == "[DONE]"
    assert all("usage" not in json.loads(event) for event in events[:-1])


def test_include_usage_adds_one_chunk_without_choices(server: Any) -> None:
    body = {"model": "fast", "messages": user("Hi"), "stream": True, "stream_options": {"include_usage": True}}
    events = [json.loads(event) for event in _events(server, body)[:-1]]
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    usage = events[-1]["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_n_gives_as_many_choices_and_counts_the_prompt_once(server: Any) -> None:
    client = server.openai()
    one = client.chat.completions.create(model="fast", messages=user("abc"))
    three = client.chat.completions.create(model="fast", messages=user("abc"), n=3)
    assert [(choice.index, choice.message.content) for choice in three.choices] == [(0, "abc"), (1, "abc"), (2, "abc")]
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens


def test_a_stream_of_n_has_role_and_finish_for_each(server: Any) -> None:
    roles, finishes, texts = [], [], ["", ""]
    for chunk in server.openai().chat.completions.create(model="fast", messages=user("abc"), n=2, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.delta.role:
            roles.append(choice.index)
        if choice.finish_reason:
            finishes.append(choice.index)
    assert (sorted(roles), sorted(finishes), texts) == ([0, 1], [0, 1], ["abc", "abc"])


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_ends_with_length(server: Any, field: str) -> None:
    answer = server.openai().chat.completions.create(model="fast", messages=user("abcdef"), **{field: 3})
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "length")


@pytest.mark.parametrize("stop", ["d", ["zz", "de"]])
def test_stop_ends_before_its_text(server: Any, stop: Any) -> None:
    answer = server.openai().chat.completions.create(model="fast", messages=user("abcdef"), stop=stop)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("abc", "stop")


def test_fields_that_change_nothing_are_taken(server: Any) -> None:
    extras = {
        "metadata": {"a": "b"}, "store": True, "user": "u", "safety_identifier": "s", "reasoning_effort": "low",
        "verbosity": "low", "parallel_tool_calls": True, "prediction": {"type": "content", "content": "a"},
        "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "logprobs": False,
        "modalities": ["text"], "cache_prompt": True, "chat_template_kwargs": {"enable_thinking": False},
        "top_k": -1, "min_p": 0.1, "repeat_penalty": 1.1, "seed": 7, "logit_bias": {"65": -100},
        "stream_options": None, "stop": None, "temperature": None, "unheard_of": [1],
    }  # fmt: skip
    answer = server.http.post("/v1/chat/completions", json={"model": "fast", "messages": user("ab")} | extras)
    assert answer.status_code == 200, answer.text


def test_a_models_sampling_defaults_fill_the_gaps(start_server: Any) -> None:
    model = {"backend": "fake", "sampling": {"max_tokens": 2}}
    running = start_server({"models": {"fast": model}})
    client = running.openai()
    assert client.chat.completions.create(model="fast", messages=user("abcd")).choices[0].message.content == "ab"
    asked = client.chat.completions.create(model="fast", messages=user("abcd"), max_tokens=3)
    assert asked.choices[0].message.content == "abc"


def _prompt(messages: list[dict[str, Any]], **more: Any) -> list[dict[str, Any]]:
    body = {"model": "fast", "messages": messages} | more
    return to_prompt(parse(json.dumps(body).encode(), ChatCompletionRequest)).messages


def test_leading_system_and_developer_messages_become_one() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        *user("d"),
        {"role": "developer", "content": "e"},
    ]
    assert _prompt(messages) == [
        {"role": "system", "content": "a\n\nb\nc"},
        {"role": "user", "content": "d"},
        {"role": "system", "content": "e"},
    ]


def test_a_tool_exchange_keeps_its_ids_and_has_string_contents() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "function", "name": "g", "content": "43"},
    ]
    assert _prompt(messages)[1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "tool", "content": "43", "name": "g"},
    ]


def test_a_part_that_is_no_text_is_named() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(ApiError) as caught:
        _prompt([*user("x"), *user(parts)])
    assert caught.value.param == "messages[1].content[1].type"


def _events(server: Any, body: dict[str, Any]) -> list[str]:
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [block.removeprefix("data: ") for block in blocks]
