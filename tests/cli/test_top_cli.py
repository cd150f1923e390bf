"""`twospeed top`: one screen, JSON, and a terminal that lives on while the server goes and comes."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from twospeed.cli.top import GoneError, watch
from twospeed.cli.top_view import screen

ENV = os.environ | {"COLUMNS": "120", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
KEY = "0123456789abcdef"


def command(url: str, *words: str) -> list[str]:
    return [sys.executable, "-m", "twospeed", "top", "--url", url, *words]


def top(url: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(url, *words), env=ENV | env, capture_output=True, text=True, check=False, timeout=60)


def drawn(board: dict[str, Any] | None, problem: str | None = None, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(screen("http://x", board, problem))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_screen_shows_tiers_and_models(server: Any) -> None:
    done = top(f"{server.url}/v1/", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("ultrafast", "priority", "default", "flex", "fast", "ready", "90%", "0/16", "TTFT p50"):
        assert word in done.stdout
    assert top(server.url).stdout.splitlines()[2:4] == done.stdout.splitlines()[2:4], "as in a pipe"


def test_json_is_what_the_server_says(server: Any) -> None:
    done = top(server.url, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    board = json.loads(done.stdout)
    assert (board["object"], len(board["tiers"]), board["models"][0]["model"]) == ("tiers", 4, "fast")


def test_the_key_comes_from_the_option_or_the_environment(start_server: Any) -> None:
    running = start_server({"server": {"api_keys": [{"name": "k", "key": KEY}]}})
    assert top(running.url, "--json", "--key", KEY).returncode == 0
    assert top(running.url, "--json", TWOSPEED_API_KEY=KEY).returncode == 0
    refused = top(running.url, "--once", TWOSPEED_API_KEY="wrong")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "API key" in refused.stderr


@pytest.mark.parametrize("mode", ["--json", "--once"])
def test_no_server_is_one_line(mode: str) -> None:
    for url in ("http://127.0.0.1:9", "ftp://x", "no-scheme", "http://["):
        done = top(url, mode)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1, done.stderr


class Elsewhere:
    """A server of another kind, that answers everything with `status` and `body`."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._web = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._web.server_port}"

    def __enter__(self) -> str:
        self._thread = threading.Thread(target=self._web.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self.url

    def __exit__(self, *_: object) -> None:
        self._web.shutdown()
        self._web.server_close()
        self._thread.join()


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, b"<html>", "it is not twospeed, or an older one"),
        (200, b"[]", "it is not twospeed, or an older one"),
        (200, b'{"object": "list"}', "it is not twospeed, or an older one"),
        (401, b'{"error": {"message": "no key"}}', "no key"),
        (502, b"<html>", "answers with status 502"),
    ],
)
def test_a_server_of_another_kind_is_one_line(status: int, body: bytes, problem: str) -> None:
    with Elsewhere(status, body) as url:
        done = top(url, "--once")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert problem in done.stderr


def test_a_server_that_goes_away_is_shown_and_waited_for() -> None:
    answers: Iterator[Any] = iter([None, {"n": 1}, None, None, {"n": 2}])
    shown: list[tuple[Any, Any]] = []
    pauses: list[None] = []

    def ask() -> dict[str, Any]:
        answer = next(answers, KeyboardInterrupt)
        if answer is KeyboardInterrupt:
            raise KeyboardInterrupt
        if answer is None:
            raise GoneError("gone")
        return dict(answer)

    with pytest.raises(KeyboardInterrupt):
        watch(ask, lambda *both: shown.append(both), lambda: pauses.append(None))
    assert shown == [(None, "gone"), ({"n": 1}, None), ({"n": 1}, "gone"), ({"n": 1}, "gone"), ({"n": 2}, None)]
    assert len(pauses) == len(shown)


def read_until(terminal: int, word: bytes) -> bytes:
    seen = b""
    while word not in seen:
        part = os.read(terminal, 65536)
        assert part, seen
        seen += part
    return seen


def test_in_a_terminal_it_goes_on_and_ctrl_c_ends_it_cleanly(server: Any) -> None:
    leader, follower = pty.openpty()
    try:
        program = subprocess.Popen(
            command(server.url), env=ENV | {"TERM": "xterm"}, stdin=follower, stdout=follower, stderr=follower
        )
        try:
            for _ in range(2):  # two screens
                read_until(leader, b"promised")
            program.send_signal(signal.SIGINT)
            seen = read_until(leader, b"\x1b[?1049l")  # back to the screen that was there before
            assert program.wait(20) == 0
            assert b"Traceback" not in seen
        finally:
            program.kill()
            program.wait()
    finally:
        os.close(leader)
        os.close(follower)


BOARD: dict[str, Any] = {
    "device_busy": 0.98,
    "tiers": [
        {
            "tier": "ultrafast",
            "share_promised": 0.9,
            "models": [
                {
                    "model": "fast",
                    "seats": 16,
                    "seats_in_use": 12,
                    "queue": 128,
                    "tokens_per_second": 123.44,
                    "share_used": 0.31,
                    "ttft_ms": {"p50": 1230.0, "p95": 12300.0, "samples": 3},
                }
            ],
        }
    ],
    "models": [
        {
            "model": "smart",
            "state": "downloading",
            "detail": "250 of 1117 MB",
            "running": 12,
            "waiting": 120,
            "steps_per_second": 125.3,
            "step_ms": 1250.3,
            "decode_rows": 16.0,
            "prefill_rows": 128.0,
            "kv_used_tokens": 16384,
            "kv_total_tokens": 32768,
        }
    ],
}


def test_busy_figures_fit_into_80_columns() -> None:
    text = drawn(BOARD)
    for word in ("12/16", "128", "123", "1.23 s", "12.30 s", "31%", "90%", "98%", "1250 ms", "16.0+128", "50% of 32k"):
        assert word in text
    assert "downloading: 250 of…" in text
    assert text.count("…") == 1


def test_a_problem_is_shown_above_the_last_board() -> None:
    text = drawn(BOARD, "no server answers at http://x", width=160)
    assert text.index("no server answers at http://x; waiting for it; below is what it said last") < text.index("12/16")
    assert "waiting for it" in drawn(None, "gone")


def test_what_a_server_sends_does_not_drive_the_terminal() -> None:
    evil = {"tiers": [{"tier": "\x1b[2Jx", "models": [{"model": "[red]m\x07\x9b"}]}], "models": [{"model": "\x1bc"}]}
    text = drawn(evil)
    assert not any(ord(char) < 32 and char != "\n" for char in text)
    assert "[red]m" in text


_json = st.none() | st.booleans() | st.floats() | st.integers() | st.just(10**400) | st.text(max_size=5)
_row = st.dictionaries(
    st.sampled_from(["model", "state", "detail", "seats", "queue", "share_used", "step_ms", "kv_used_tokens"]), _json
)
_boards = st.fixed_dictionaries(
    {},
    optional={
        "tiers": st.lists(st.fixed_dictionaries({"models": st.lists(_row, max_size=2)}), max_size=2),
        "models": st.lists(_row, max_size=2),
        "device_busy": _json,
    },
)


@given(board=_boards)
def test_figures_of_any_kind_are_drawn(board: dict[str, Any]) -> None:
    assert "twospeed top" in drawn(board)
