"""The measuring client: what it makes of the bytes, however they arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.bench.client import BenchError, Endpoint, RefusedError, Stream, decode, read_result

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode()


def chunked(*bodies: bytes) -> bytes:
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies) + b"0\r\n\r\n"


def sse(*events: bytes) -> bytes:
    return b"".join(b"data: %b\n\n" % data for data in events)


@given(st.lists(st.text(), min_size=1, max_size=6), st.data())
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], data: st.DataObject) -> None:
    events = [event(text) for text in texts]
    body = sse(*events)
    inner = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=5)))
    raw = chunked(*[body[a:b] for a, b in zip([0, *inner], [*inner, len(body)], strict=True)])
    outer = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *outer], [*outer, len(raw)], strict=True)]
    answer = decode([(float(i), piece) for i, piece in enumerate(pieces)])
    assert answer.status == 200
    assert [found for _, found in answer.events()] == events
    times = [at for at, _ in answer.events()]
    assert times == sorted(times)


def test_an_event_counts_when_its_last_byte_is_there() -> None:
    raw = chunked(sse(event("a")), sse(event("b")))
    cut = raw.index(b'"b"')
    answer = decode([(1.0, raw[:cut]), (2.0, raw[cut:])])
    assert [at for at, _ in answer.events()] == [1.0, 2.0]


def test_a_body_with_a_length_is_taken_as_it_is() -> None:
    answer = decode([(1.0, b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")])
    assert (answer.status, answer.body) == (404, b"{}")


def test_tokens_are_stamped_and_roles_and_comments_are_not() -> None:
    role = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}).encode()
    word = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}}]}).encode()
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    last = json.dumps({"choices": [], "usage": usage, "timings": {"prompt_n": 2, "prompt_ms": 4.0}}).encode()
    raw = chunked(sse(role), b": keep-alive\n\n", sse(word), sse(end, last, b"[DONE]"))
    cut = raw.index(b"hi")
    result = read_result(decode([(1.0, raw[:cut]), (2.0, raw[cut:])]), 0.5, whole=True)
    assert (result.times, result.text, result.tokens, result.cached_tokens) == ([2.0], "hi", 2, 3)
    assert result.ttft_ms == 1500
    assert result.prefill_rate == 500


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "without an answer"),
        (chunked(sse(event("a"))), "broke off"),
        (chunked(sse(b"[DONE]")), "no text"),
        (chunked(sse(event("a"), b'{"error": {"message": "dead engine"}}')), "dead engine"),
        (b'HTTP/1.1 429 No\r\n\r\n{"error": {"message": "queue is full"}}', "status 429: queue is full"),
        (b"HTTP/1.1 502 No\r\n\r\n<html>", "status 502"),
    ],
)
def test_what_is_no_good_stream_is_an_error(raw: bytes, problem: str) -> None:
    with pytest.raises(BenchError, match=problem):
        read_result(decode([(1.0, raw)] if raw else []), 0.0, whole=True)


def test_a_stream_of_a_real_server(server: Any) -> None:
    async def talk() -> None:
        endpoint = Endpoint(server.url)
        body = {"model": "fast", "prompt": "abc", "max_tokens": 20, "ignore_eos": True, "speculation": "off"}
        result = await (await Stream.start(endpoint, body)).result()
        assert (result.tokens, len(result.times), len(result.text)) == (20, 20, 20)
        assert result.times == sorted(result.times)
        assert result.sent < result.times[0]
        with pytest.raises(BenchError, match="status 404"):
            await (await Stream.start(endpoint, body | {"model": "none"})).result()
        status, models = await endpoint.get("/v1/models")
        assert (status, models["data"][0]["id"]) == (200, "fast")

    asyncio.run(talk())


def test_a_cut_stream_gives_what_came_and_frees_the_server(slow_server: Any) -> None:
    async def talk() -> None:
        body = {"model": "fast", "prompt": "abc", "max_tokens": 3000, "ignore_eos": True}
        stream = await Stream.start(Endpoint(slow_server.url), body)
        await stream.reach(3)
        await stream.more(2)
        result = stream.cut()
        assert 5 <= len(result.times) < 100
        assert result.tokens == 0

    asyncio.run(talk())
    slow_server.wait_idle()


def test_no_server_is_an_error() -> None:
    with pytest.raises(BenchError, match="no server answers"):
        asyncio.run(Endpoint("http://127.0.0.1:9").get("/v1/models"))


def test_tier_counts_and_lines_of_other_servers_are_read() -> None:
    first = b'{"service_tier": "ultrafast", "choices": [{"index": 0, "delta": {"content": "hi"}}], "usage": null}'
    last = b'{"choices": [], "usage": {"completion_tokens": 1, "prompt_tokens": 3}}'
    raw = chunked(b"".join(b"data: %b\r\n\r\n" % data for data in (first, last, b"[DONE]")))
    result = read_result(decode([(1.0, raw)]), 0.5, whole=True)
    assert (result.served, result.text, result.headers_at) == ("ultrafast", "hi", 1.0)
    assert result.usage == {"completion_tokens": 1, "prompt_tokens": 3}


def test_a_refusal_keeps_its_status_and_its_moment() -> None:
    with pytest.raises(RefusedError, match="no seat") as refused:
        read_result(decode([(3.0, b'HTTP/1.1 429 No\r\n\r\n{"error": {"message": "no seat"}}')]), 0.0, whole=True)
    assert (refused.value.status, refused.value.headers_at) == (429, 3.0)
