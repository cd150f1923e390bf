"""What holds for every path: ids, errors, hosts, keys, and the limits of a body."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from typing import Any

import httpx
import openai
import pytest

from twospeed.api import body as body_module

CHAT = "/v1/chat/completions"
BODY = {"model": "fast", "messages": [{"role": "user", "content": "hi"}]}
KEY = "sk-test-0123456789abcdef"
OTHER = "sk-test-fedcba9876543210"


def raw(port: int, data: bytes) -> bytes:
    """All the server says to `data` until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_every_answer_has_an_id_and_a_time(server: Any) -> None:
    answer = server.http.post(CHAT, json=BODY)
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert "server" not in answer.headers
    assert server.http.get("/nowhere").headers["x-request-id"]


def test_a_valid_request_id_is_echoed_and_another_replaced(server: Any) -> None:
    def echoed(wanted: str) -> str:
        return str(server.http.get("/livez", headers={"x-request-id": wanted}).headers["x-request-id"])

    assert echoed("a-1_b.c:d") == "a-1_b.c:d"
    for bad in ("", "a b", "x" * 129, 'a"b', "a;b"):
        assert echoed(bad) != bad


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("OPTIONS", CHAT, 405, "method_not_allowed"),
        ("GET", "/v1/models/nope", 404, "model_not_found"),
    ],
)
def test_the_routers_errors_have_the_envelope(server: Any, method: str, path: str, status: int, code: str) -> None:
    answer = server.http.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert not any(header.startswith("access-control") for header in answer.headers)
    if status == 405:
        assert answer.headers["allow"]


def test_an_unexpected_exception_is_a_500_that_tells_nothing_but_its_id(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    running = start_server()

    def explode(*_: object) -> str:
        raise RuntimeError("terces"[::-1])  # the traceback shows this line, but not the message

    running.gateway.tier = explode
    answer = running.http.post(CHAT, json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]:1"])
def test_a_host_that_is_not_loopback_is_refused(server: Any, host: str) -> None:
    answer = server.http.get("/v1/models", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_host")


def test_loopback_and_allowed_hosts_are_served(start_server: Any) -> None:
    running = start_server({"server": {"allowed_hosts": ["box.lan"]}})
    for host in ("localhost", "localhost:1", "127.0.0.1:9", "[::1]:8000", "LOCALHOST.", "box.lan:80"):
        assert running.http.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_types_that_a_web_page_may_send_anywhere_are_refused(server: Any, kind: str) -> None:
    answer = server.http.post(CHAT, content=json.dumps(BODY), headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_no_type_is_taken_from_programs_but_not_from_browsers(server: Any) -> None:
    assert server.http.post(CHAT, content=json.dumps(BODY)).status_code == 200
    answer = server.http.post(CHAT, content=json.dumps(BODY), headers={"origin": "https://evil.example"})
    assert answer.status_code == 415
    charset = {"content-type": "Application/JSON; charset=utf-8"}
    assert server.http.post(CHAT, content=json.dumps(BODY), headers=charset).status_code == 200


@pytest.fixture
def keyed(start_server: Any) -> Any:
    keys = [{"name": "a", "key": KEY}, {"name": "b", "sha256": hashlib.sha256(OTHER.encode()).hexdigest()}]
    return start_server({"server": {"api_keys": keys}})


def test_with_keys_only_a_key_opens(keyed: Any) -> None:
    for path in ("/v1/models", "/metrics"):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}, {"x-api-key": "wrong"}):
            answer = keyed.http.get(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.json()["error"]["type"] == "authentication_error"
        for headers in ({"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {OTHER}"}, {"x-api-key": KEY}):
            assert keyed.http.get(path, headers=headers).status_code == 200
    assert keyed.http.get("/livez").status_code == 200
    assert keyed.http.get("/readyz").status_code in (200, 503)
    assert keyed.http.post(CHAT, content=b"x").status_code == 401, "before the body is looked at"


def test_the_sdk_meets_its_own_exceptions(keyed: Any) -> None:
    with pytest.raises(openai.AuthenticationError):
        keyed.openai(api_key="wrong").models.list()
    client = keyed.openai(api_key=KEY)
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(**BODY | {"model": "nope"})
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id


@pytest.fixture
def small(start_server: Any) -> Any:
    return start_server({"server": {"max_body_bytes": 2048}})


def test_a_body_that_says_it_is_too_large_is_refused_unread(small: Any) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
    with socket.create_connection(("127.0.0.1", small.port), timeout=10) as connection:
        connection.sendall(head + b"content-length: 99999999999999999999999\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 4")
    answer = small.http.post(CHAT, content=b" " * 4096, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")


def test_a_body_that_turns_out_too_large_is_refused_while_it_is_read(small: Any) -> None:
    chunks = (b" " * 1024 for _ in range(64))
    answer = small.http.post(CHAT, content=chunks, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert small.http.post(CHAT, json=BODY).status_code == 200


def test_a_slow_body_times_out(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "BODY_TIMEOUT_S", 0.1)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{{"
    answer = raw(server.port, head.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in answer


def test_headers_without_end_are_cut_off(server: Any) -> None:
    answer = raw(server.port, b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"too large" in answer


def test_what_is_not_http_gets_the_envelope_too(server: Any) -> None:
    answer = raw(server.port, b"\x16\x03\x01 hello\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"


def test_the_document_describes_bodies_and_loads_nothing_from_elsewhere(server: Any) -> None:
    document = server.http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    chat = document["paths"][CHAT]["post"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert reference == "#/components/schemas/ChatCompletionRequest"
    assert schemas["ChatCompletionRequest"]["required"] == ["model", "messages"]
    text = json.dumps(document)
    assert {name.rpartition("/")[2] for name in re.findall(r'"\$ref": "(.*?)"', text)} <= schemas.keys()
    assert "HTTPValidationError" not in text
    for page in ("/docs", "/redoc"):
        assert server.http.get(page).status_code == 404


def test_a_connection_is_used_again_after_errors(server: Any) -> None:
    with httpx.Client(base_url=server.url, limits=httpx.Limits(max_connections=1)) as http:
        for _ in range(3):
            assert http.post(CHAT, content=b"{", headers={"content-type": "application/json"}).status_code == 400
            assert http.post(CHAT, json=BODY).status_code == 200
