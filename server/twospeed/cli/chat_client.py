"""What `twospeed chat` needs of the HTTP API: the models, and answers that stream. Knows no terminal.

httpx is imported when it is needed, as everywhere in the command line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx

_CONNECT_S, _SILENCE_S = 5.0, 600.0  # a queued request or a long prompt is silent for long


class ChatError(Exception):
    """What the user is told instead of an answer, in one line."""


class Answer(NamedTuple):
    """An answer's text and figures; `usage` is empty where it was stopped."""

    text: str
    model: str
    tier: str
    ttft_s: float
    decode_s: float
    finish_reason: str | None
    usage: dict[str, Any]
    timings: dict[str, Any]


class Client:
    """The HTTP side."""

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url

    def models(self) -> list[dict[str, Any]]:
        """The server's models. Raises ChatError."""
        with self._plain_errors():
            response = self._http.get("/v1/models")
        if response.status_code != 200:
            raise ChatError(_message(response.status_code, response.content))
        try:
            models: list[dict[str, Any]] = response.json()["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise ChatError(f"{self._url} does not answer as this API does") from error
        return models

    def stream(self, model: str, messages: list[dict[str, str]], show: Callable[[str], None]) -> Answer:
        """Have `messages` answered; `show` gets the text as it comes. Raises ChatError.

        Leaving it, by Ctrl-C too, closes the connection, which ends the work on the server.
        """
        body = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        sent = time.perf_counter()
        first = last = 0.0
        texts: list[str] = []
        answer = Answer("", model, "default", 0.0, 0.0, None, {}, {})
        with self._plain_errors(), self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise ChatError(_message(response.status_code, response.read()))
            for data in _events(response.iter_bytes()):
                if data == b"[DONE]":
                    break
                event = _event(data)
                answer = answer._replace(
                    model=event.get("model") or answer.model,
                    tier=event.get("service_tier") or answer.tier,
                    usage=event.get("usage") or answer.usage,
                    timings=event.get("timings") or answer.timings,
                )
                for choice in event.get("choices") or []:
                    answer = answer._replace(finish_reason=choice.get("finish_reason") or answer.finish_reason)
                    if text := (choice.get("delta") or {}).get("content"):
                        last = time.perf_counter()
                        first = first or last
                        texts.append(text)
                        show(text)
            else:
                raise ChatError("the answer broke off: the server closed the connection")
        return answer._replace(text="".join(texts), ttft_s=first - sent if first else 0.0, decode_s=last - first)

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise ChatError(f"no server answers at {self._url}; start one with: twospeed serve") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ChatError(f"{self._url}: {error or type(error).__name__}") from error


@contextmanager
def connect(url: str, key: str | None) -> Iterator[Client]:
    """A client for the server at `url`. Raises ChatError."""
    import httpx

    base = url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
    try:
        http = httpx.Client(base_url=base, headers=headers, timeout=timeout)
    except httpx.InvalidURL as error:
        raise ChatError(f"{url}: {error}") from error
    with http:
        yield Client(http, base)


def _events(parts: Iterator[bytes]) -> Iterator[bytes]:
    """The data of server-sent events. Not httpx's iter_lines: it also ends lines at U+2028, which text may hold."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _event(data: bytes) -> dict[str, Any]:
    """One event of a stream. Raises ChatError for what is none, and for an error event."""
    try:
        event: dict[str, Any] = json.loads(data)
        error = event.get("error")
    except (ValueError, AttributeError) as problem:
        raise ChatError("the answer broke off: the server sent something else") from problem
    if error:
        raise ChatError(f"the answer broke off: {error.get('message') if isinstance(error, dict) else error}")
    return event


def _message(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered with status {status}"
