"""A client that leaves takes its work with it, wherever that is; and no permit is ever lost."""

from __future__ import annotations

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

LONG = {"model": "fast", "prompt": "abc", "max_tokens": 3000}


def send(port: int, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A connection on which `body` was sent."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(head + data)
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


def test_a_client_that_leaves_in_decode_frees_the_engine(slow_server: Any) -> None:
    slow_server.wait_idle()
    connection = send(slow_server.port, LONG | {"stream": True})
    read_until(connection, b'"text":"')
    assert slow_server.held() == 1
    connection.close()
    slow_server.wait_idle()


def test_a_client_that_leaves_without_a_stream_frees_the_engine(slow_server: Any) -> None:
    slow_server.wait_idle()
    connection = send(slow_server.port, LONG)
    slow_server.wait_metric("sequences_running", 1)
    connection.close()
    slow_server.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_it_waits_for_a_slot_leaves_the_queue(slow_server: Any, stream: bool) -> None:
    slow_server.wait_idle()
    running = [send(slow_server.port, LONG | {"stream": True}) for _ in range(2)]
    for connection in running:
        read_until(connection, b'"text":"')
    waiting = send(slow_server.port, LONG | {"stream": stream})
    slow_server.wait_metric("queue_depth", 1)
    waiting.close()
    slow_server.wait_metric("sequences_admitted", 2)
    slow_server.wait_metric("queue_depth", 0)
    for connection in running:
        connection.close()
    slow_server.wait_idle()


def test_a_client_that_leaves_in_prefill_frees_the_engine(start_server: Any) -> None:
    running = start_server({}, {"TWOSPEED_FAKE_ROW_MS": "1"})
    running.wait_ready("fast")
    connection = send(running.port, {"model": "fast", "prompt": "a" * 3000, "max_tokens": 1})
    running.wait_metric("sequences_running", 1)
    connection.close()
    running.wait_idle()
    assert running.metric("completion_tokens_total") == 0


def test_several_prompts_are_all_cancelled(slow_server: Any) -> None:
    slow_server.wait_idle()
    connection = send(slow_server.port, LONG | {"prompt": ["aa", "bb", "cc"], "stream": True})
    read_until(connection, b'"text":"')
    assert slow_server.held() == 3
    connection.close()
    slow_server.wait_idle()


def test_a_client_that_leaves_is_counted_as_499(slow_server: Any) -> None:
    slow_server.wait_idle()
    before = slow_server.metric("requests_total", status="499", model="fast")
    connection = send(slow_server.port, LONG)
    slow_server.wait_metric("sequences_running", 1)
    connection.close()
    slow_server.wait_idle()
    assert slow_server.metric("requests_total", status="499", model="fast") == before + 1


def test_more_than_the_queue_holds_is_refused_at_once(slow_server: Any) -> None:
    slow_server.wait_idle()
    connection = send(slow_server.port, LONG | {"n": 4, "stream": True})
    read_until(connection, b'"text":"')
    answer = slow_server.http.post("/v1/completions", json=LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0
    never = slow_server.http.post("/v1/completions", json=LONG | {"n": 5})
    assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
    connection.close()
    slow_server.wait_idle()


def test_a_wait_for_a_slot_ends_after_queue_wait_s(start_server: Any) -> None:
    models = {"fast": {"backend": "fake", "slots": 1}}
    running = start_server({"models": models, "server": {"queue_wait_s": 0.2}}, {"TWOSPEED_FAKE_STEP_MS": "20"})
    running.wait_ready("fast")
    connection = send(running.port, LONG | {"stream": True})
    read_until(connection, b'"text":"')
    answer = running.http.post("/v1/completions", json=LONG | {"stream": True})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
    assert answer.headers["retry-after"]
    connection.close()
    running.wait_idle()


def test_after_a_storm_of_good_bad_and_broken_requests_nothing_is_held(slow_server: Any) -> None:
    slow_server.wait_idle()
    seed = random.Random(7)
    jobs = [
        (seed.choice(["read", "leave", "bad", "half"]), seed.random() * 0.1, seed.random() < 0.5) for _ in range(60)
    ]

    def one(job: tuple[str, float, bool]) -> None:
        kind, patience, stream = job
        body = {"model": "fast", "prompt": "ab", "max_tokens": 4 if kind == "read" else 50, "stream": stream}
        if kind == "bad":
            body["temperature"] = 9
        if kind == "half":
            connection = socket.create_connection(("127.0.0.1", slow_server.port), timeout=20)
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{")
            connection.close()
            return
        timeout = httpx.Timeout(20, read=patience) if kind == "leave" else 20
        try:
            answer = httpx.post(f"{slow_server.url}/v1/completions", json=body, timeout=timeout)
        except httpx.ReadTimeout:
            assert kind == "leave"
        else:
            assert answer.status_code in (200, 400, 429)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, jobs))
    slow_server.wait_idle()
    assert slow_server.http.post("/v1/completions", json={"model": "fast", "prompt": "a"}).status_code == 200
