"""`twospeed chat` as a user runs it: a process of its own, in pipes and at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

ENV = os.environ | {"NO_COLOR": "1", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
FIGURES = re.compile(
    r"first token \d+\.\d\d s, \d+\.\d tok/s, \d+ tokens, model fast, tier default, \d+ of \d+ prompt tokens cached"
)


def chat(url: str, *words: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "twospeed", "chat", "--url", url, *words]
    return subprocess.run(command, env=ENV | env, input=stdin, capture_output=True, text=True, check=False, timeout=60)


def test_a_prompt_gives_the_answer_on_stdout_and_its_figures_on_stderr(server: Any) -> None:
    done = chat(server.url, "Hello there")
    assert (done.returncode, done.stdout) == (0, "Hello there\n")
    assert FIGURES.fullmatch(done.stderr.strip()), done.stderr


def test_what_is_piped_in_is_the_question(server: Any) -> None:
    assert chat(server.url, stdin="from a pipe\n").stdout == "from a pipe\n"
    assert chat(server.url, "explain:", "--system", "be brief", stdin="x = 1").stdout == "explain:\n\nx = 1\n"


def test_an_address_with_v1_is_taken_too(server: Any) -> None:
    assert chat(f"{server.url}/v1/", "hi").stdout == "hi\n"


def test_text_that_has_line_separators_comes_whole(server: Any) -> None:
    text = "a\u2028b\u0085c 🙂 ü"
    assert chat(server.url, text).stdout == text + "\n"


def test_nothing_to_ask_is_one_line(server: Any) -> None:
    done = chat(server.url)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "there is no question: stdin is empty\n")


def test_no_server_is_one_line() -> None:
    done = chat("http://127.0.0.1:9", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "no server answers at http://127.0.0.1:9; start one with: twospeed serve\n"


def test_an_address_that_is_none_is_one_line() -> None:
    for url in ("ftp://x", "http://[", "no-scheme"):
        done = chat(url, "hi")
        assert done.returncode == 1
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_servers_error_is_shown_as_its_message(server: Any) -> None:
    done = chat(server.url, "--model", "fats", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert "fats" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_key_comes_from_the_environment(start_server: Any) -> None:
    key = "0123456789abcdef"
    running = start_server({"server": {"api_keys": [{"name": "k", "key": key}]}})
    assert chat(running.url, "hi", TWOSPEED_API_KEY=key).stdout == "hi\n"
    refused = chat(running.url, "hi", TWOSPEED_API_KEY="wrong")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1


@contextlib.contextmanager
def broken_server(body: bytes) -> Iterator[str]:
    """A server that answers every POST with `body` as a stream."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


PART = b'data: {"choices": [{"index": 0, "delta": {"content": "half"}}]}\n\n'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (PART, "the answer broke off: the server closed the connection"),
        (PART + b'data: {"error": {"message": "engine died"}}\n\n', "the answer broke off: engine died"),
        (PART + b"data: <html>\n\n", "the answer broke off: the server sent something else"),
    ],
)
def test_a_stream_that_breaks_off_is_an_error_after_what_came(body: bytes, problem: str) -> None:
    with broken_server(body) as url:
        done = chat(url, "--model", "m", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (1, "half\n", problem + "\n")


class Terminal:
    """`twospeed chat` on a pseudo-terminal."""

    def __init__(self, *words: str) -> None:
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "twospeed", "chat", *words]
        self.process = subprocess.Popen(command, env=ENV, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        """Once the program asks: what is typed before may be lost to a change of the terminal's mode."""
        self.expect("> ")
        os.write(self._master, text.encode())

    def expect(self, text: str, seconds: float = 20) -> str:
        """What was shown up to and with `text`; it is then used up."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # Linux: the other end is closed
                    assert text in self.seen, self.seen
        found, _, self.seen = self.seen.partition(text)
        return found + text

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Terminal:
            opened = Terminal(*words)
            stack.callback(opened.close)
            return opened

        yield start


def test_a_conversation_at_a_terminal(start_server: Any, terminal: Any) -> None:
    models = {"fast": {"backend": "fake", "aliases": ["quick"]}, "smart": {"backend": "fake"}}
    running = start_server({"models": models})
    running.wait_ready("fast")
    running.wait_ready("smart")
    user = terminal("--url", running.url)
    user.expect("smart answers.")
    user.type("first question\n")
    user.expect("0 of ")
    user.type("second question\n")
    shown = user.expect("prompt tokens cached")
    assert "second question" in shown
    assert not re.search(r" [01] of \d+ prompt", shown)  # it sent the first one along
    user.type("/reset\n")
    user.expect("forgotten")
    user.type("/model none\n")
    user.expect("no model is named 'none'; there are: fast, smart")
    user.type("/model quick\n")
    user.expect("fast answers")
    user.type("third\n")
    user.expect("model fast")
    user.type("/nonsense\n")
    user.expect("unknown command /nonsense")
    user.type("/exit\n")
    assert user.process.wait(10) == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(slow_server: Any, terminal: Any) -> None:
    slow_server.wait_idle()
    user = terminal("--url", slow_server.url)
    user.type("a long story " * 40 + "\n")
    slow_server.wait_metric("sequences_admitted", 1)
    user.process.send_signal(signal.SIGINT)
    user.expect("stopped")
    slow_server.wait_idle()
    user.type("short\n")
    user.expect("prompt tokens cached")
    user.expect("> ")
    user.process.send_signal(signal.SIGINT)
    user.expect("/exit or Ctrl-D ends")
    user.type("\x04")
    assert user.process.wait(10) == 0


def test_what_a_model_writes_does_not_drive_the_terminal(server: Any, terminal: Any) -> None:
    user = terminal("--url", server.url, "--model", "fast", "red \x1b[31m and \x9b2J bell \x07 end")
    # one-shot, as there is a prompt; stdin is a terminal and is not read
    shown = user.expect("prompt tokens cached")
    assert "red [31m and 2J bell  end" in shown
    assert user.process.wait(10) == 0


def test_a_server_that_goes_away_is_named_and_the_program_stays(serve: Any, terminal: Any) -> None:
    with serve() as running:
        running.wait_ready("fast")
        user = terminal("--url", running.url)
        user.expect("answers")
    user.type("anybody?\n")
    user.expect("error: no server answers")
    user.type("\x04")
    assert user.process.wait(10) == 0
