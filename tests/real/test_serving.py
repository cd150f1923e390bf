"""The running product on real models: SDK, conversation, fill-in-the-middle, many clients, a killed engine, memory."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("name", ["fast", "smart"])
def test_the_sdk_gets_a_right_answer_whole_and_streamed(server: Any, name: str) -> None:
    question = user("What is the capital of France? Answer with one word.")
    sdk = server.sdk()
    whole = sdk.chat.completions.create(model=name, messages=question, temperature=0, max_tokens=20)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    assert (whole.model, whole.service_tier) == (name, "default")
    parts = list(
        sdk.chat.completions.create(
            model=name,
            messages=question,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == whole.choices[0].message.content
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_middle_is_filled_in(server: Any) -> None:
    answer = server.sdk().completions.create(
        model="fast",
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        temperature=0,
        max_tokens=16,
    )
    assert answer.choices[0].text.strip().startswith("a + b")


def test_from_the_second_turn_on_only_what_is_new_is_prefilled(server: Any) -> None:
    sdk, messages = server.sdk(), []
    before = 0  # tokens of the conversation so far
    for turn in range(8):
        messages += user(f"Question {turn}: tell me something about the number {turn * 7}.")
        answer = sdk.chat.completions.create(model="fast", messages=messages, temperature=0.7, seed=turn, max_tokens=24)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        usage = answer.usage
        prefilled = usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens
        if turn:
            assert prefilled <= usage.prompt_tokens - before + 2, f"turn {turn}"
        before = usage.prompt_tokens + usage.completion_tokens - 1  # the last token is never computed


def test_64_streams_on_16_slots_all_finish_in_fair_order(server: Any) -> None:
    slots = server.config.models["tiny"].slots
    assert slots == 16
    ended: dict[int, float] = {}

    def stream(number: int) -> int:
        body = {
            "model": "tiny",
            "messages": user(f"Tell me story number {number}."),
            "max_tokens": 24,
            "stream": True,
            "ignore_eos": True,
        }
        time.sleep(number * 0.02)  # so that there is an order to keep
        with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            lines = [line for line in response.iter_lines() if line.startswith("data:")]
            ended[number] = time.monotonic()
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line[5:]) for line in lines[:-1]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        return int(chunks[-1]["timings"]["predicted_n"])

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(stream, range(64))) == [24] * 64
    order = sorted(ended, key=ended.__getitem__)
    moved = [abs(place - number) for place, number in enumerate(order)]
    assert max(moved) <= slots, f"finished in the order {order}"


def test_a_killed_engine_ends_its_stream_with_an_error_and_comes_back(server: Any) -> None:
    before = server.processes()
    body = {"model": "tiny", "messages": user("Count."), "max_tokens": 2000, "stream": True, "ignore_eos": True}
    lines = []
    with server.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            lines.append(line)
            if len(lines) == 20:
                os.kill(before["engine"].pid, signal.SIGKILL)
    events = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert events[-1]["error"]["code"] == "engine_died"
    assert "data: [DONE]" not in lines
    server.wait_ready("tiny")
    answer = server.sdk().chat.completions.create(model="tiny", messages=user("Hello."), max_tokens=4)
    assert answer.usage.completion_tokens == 4
    after = server.processes()
    assert after["gateway"].pid == before["gateway"].pid
    assert after["engine"].pid != before["engine"].pid
    for name in ("fast", "smart"):
        server.wait_ready(name)


def test_memory_stays_flat_over_500_requests(server: Any) -> None:
    def round_of(count: int, first: int) -> None:
        def one(number: int) -> None:
            text = f"{number} " + "What do you make of this? " * (number % 20)
            body = {"model": "tiny", "messages": user(text), "max_tokens": 8, "temperature": 0.5}
            with server.http() as http:
                assert http.post("/v1/chat/completions", json=body).status_code == 200

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(first, first + count)))

    def megabytes() -> dict[str, float]:
        return {name: process.memory_info().rss / 2**20 for name, process in server.processes().items()}

    round_of(150, 0)  # until caches have their size
    before = megabytes()
    round_of(500, 150)
    after = megabytes()
    print(f"resident MB before {before}, after 500 requests {after}")
    for name in before:
        assert after[name] <= before[name] * 1.03 + 8, f"{name} grew: {before} -> {after}"
