"""`twospeed serve` as a process: signals, a dead engine, and what it says when it can't start."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

LONG = {"model": "fast", "prompt": "abc", "max_tokens": 3000, "stream": True, "speculation": "off"}
WAIT_S = 20


class Served:
    """A `twospeed serve` that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.url = self.wait_line(r"Listening on (http://\S+)")[1]
        self.wait_line("fast: ready")
        self.http = httpx.Client(base_url=self.url, timeout=WAIT_S)

    def wait_line(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self._said:
            match = self._said.wait_for(lambda: found() or self.process.poll() is not None, WAIT_S)
        assert isinstance(match, re.Match), self.lines
        return match

    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def end(self, *signals: signal.Signals) -> int:
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self.http.close()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            for line in lines:
                with self._said:
                    self.lines.append(line)
                    self._said.notify_all()


def configure(tmp_path: Path, server: dict[str, Any], **rest: Any) -> Path:
    config = {"version": 1, "server": {"port": 0} | server, "models": {"fast": {"backend": "fake", "slots": 20}}} | rest
    path = tmp_path / "models.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return path


def command(tmp_path: Path, server: dict[str, Any], *arguments: str) -> list[str]:
    path = configure(tmp_path, server)
    return [sys.executable, "-m", "twospeed", "serve", "-v", "--config", str(path), *arguments]


@pytest.fixture
def environment(home: Any) -> dict[str, str]:
    slow = {"TWOSPEED_FAKE_STEP_MS": "10"}
    return os.environ | {"TWOSPEED_HOME": str(home(slow)), "COLUMNS": "200"} | slow


@pytest.fixture
def serve(tmp_path: Path, environment: dict[str, str]) -> Iterator[Any]:
    with ExitStack() as stack:

        def start(*arguments: str, **server: Any) -> Served:
            whole = command(tmp_path, server, *arguments)
            process = subprocess.Popen(whole, env=environment, stderr=subprocess.PIPE, text=True)
            try:
                served = Served(process)
            except BaseException:
                process.kill()
                process.wait()
                raise
            stack.callback(served.close)
            return served

        yield start


@contextmanager
def streaming(served: Served, **body: Any) -> Iterator[Iterator[str]]:
    """The events of a stream, whose first has come."""
    with served.http.stream("POST", "/v1/completions", json=LONG | body) as answer:
        events = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        assert json.loads(next(events))["choices"]
        yield events


def test_sigterm_refuses_new_work_lets_a_stream_finish_and_exits_0(serve: Any) -> None:
    served = serve()
    with streaming(served, max_tokens=80) as events:
        served.process.send_signal(signal.SIGTERM)
        while (answer := served.http.get("/readyz")).status_code != 503:
            pass
        assert answer.json()["error"]["code"] == "shutting_down"
        refused = served.http.post("/v1/completions", json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"]
        assert served.http.get("/livez").status_code == 200
        *_, last, done = events
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert served.process.wait(WAIT_S) == 0


def test_what_is_not_done_in_drain_s_ends_with_an_error_event(serve: Any) -> None:
    served = serve(drain_s=0.2)
    with streaming(served) as events:
        served.process.send_signal(signal.SIGINT)
        *_, last = events
    assert json.loads(last)["error"]["code"] == "shutting_down"
    assert served.process.wait(WAIT_S) == 0


def test_a_second_signal_ends_it_at_once_and_the_engine_too(serve: Any) -> None:
    served = serve()
    engine = served.engine()
    with streaming(served):
        served.process.send_signal(signal.SIGTERM)
        while served.http.get("/readyz").status_code != 503:
            pass
        assert served.end(signal.SIGTERM) == 128 + signal.SIGTERM
        _, alive = psutil.wait_procs([engine], timeout=WAIT_S)
        assert not alive


def test_an_idle_server_ends_on_sigterm_and_says_nothing_bad(serve: Any) -> None:
    served = serve()
    assert served.http.get("/v1/models").status_code == 200
    assert served.end(signal.SIGTERM) == 0
    served.close()
    assert not [line for line in served.lines if "Error" in line or "Traceback" in line]


def test_a_killed_engine_fails_its_streams_and_comes_back(serve: Any) -> None:
    served = serve()
    killed = served.engine()
    with streaming(served) as events:
        killed.kill()
        *_, last = events
    assert json.loads(last)["error"]["code"] == "engine_died"
    answer = served.http.post("/v1/completions", json={"model": "fast", "prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "aa"
    assert served.engine().pid != killed.pid
    assert served.process.poll() is None
    metrics = served.http.get("/metrics").text
    assert 'twospeed_sequences_admitted{model="fast"} 0.0' in metrics
    assert 'status="503"' in metrics


def test_a_killed_engine_before_the_first_token_is_a_503(serve: Any) -> None:
    served = serve()
    answers: list[httpx.Response] = []
    waiting = threading.Thread(
        target=lambda: answers.append(served.http.post("/v1/completions", json=LONG | {"prompt": "a" * 1000, "n": 1}))
    )
    waiting.start()
    while 'twospeed_sequences_admitted{model="fast"} 1.0' not in served.http.get("/metrics").text:
        pass
    served.engine().kill()
    waiting.join(WAIT_S)
    (answer,) = answers
    if answer.status_code == 200:  # the first token was quicker
        assert "[DONE]" not in answer.text
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")


def test_no_line_has_a_prompt_an_output_or_a_key(serve: Any) -> None:
    key = "sk-very-secret-0123456789"
    served = serve(api_keys=[{"name": "me", "key": key}])
    for headers in ({"authorization": f"Bearer {key}"}, {"authorization": "Bearer sk-wrong-secret"}):
        for path in ("/v1/completions?q=needle", "/v1/needle"):
            served.http.post(path, json={"model": "fast", "prompt": "needle", "max_tokens": 12}, headers=headers)
        served.http.post("/v1/completions", json={"model": "needle", "prompt": {"needle": 1}}, headers=headers)
    assert served.end(signal.SIGTERM) == 0
    served.close()
    said = "".join(served.lines)
    assert " 401 " in said
    for secret in ("needle", key, "wrong-secret"):
        assert secret not in said


KEYS = {name: f"ts-{name}-0123456789abcdef" for name in ("leaving", "vip", "other")}


def as_(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def keys(*names: str) -> dict[str, Any]:
    return {"api_keys": [{"name": name, "key": KEYS[name]} for name in names]}


def run_reload(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "twospeed", "reload", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_reload_is_for_the_next_request_and_sixteen_streams_run_on(
    serve: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    served = serve(**keys("leaving", "vip"))
    read: list[list[str]] = [[] for _ in range(16)]
    leave = threading.Event()

    def stream(events: list[str]) -> None:
        with (
            httpx.Client(base_url=served.url, timeout=WAIT_S) as http,
            http.stream("POST", "/v1/completions", json=LONG, headers=as_("leaving")) as answer,
        ):
            for line in answer.iter_lines():
                events += [line.removeprefix("data: ")] if line else []
                if leave.is_set():
                    return

    def wait_more(count: int) -> None:
        """Until each stream has brought so many more events."""
        wanted = [len(events) + count for events in read]
        while any(len(events) < least for events, least in zip(read, wanted, strict=True)):
            assert all(thread.is_alive() for thread in threads)
            time.sleep(0.01)

    def ask(name: str, tier: str = "auto") -> tuple[int, str]:
        body = {"model": "fast", "prompt": "a", "max_tokens": 1, "service_tier": tier}
        answer = served.http.post("/v1/completions", json=body, headers=as_(name))
        found = answer.json()
        return answer.status_code, found["service_tier"] if answer.status_code == 200 else found["error"]["code"]

    threads = [threading.Thread(target=stream, args=(events,)) for events in read]
    for thread in threads:
        thread.start()
    wait_more(1)
    assert ask("vip", "ultrafast") == (400, "service_tier_not_allowed")
    assert (ask("leaving"), ask("other")) == ((200, "default"), (401, "invalid_api_key"))

    tiers = {"priority": {"weight": 9}, "flex": {"seats": 0}}
    path = configure(tmp_path, keys("vip", "other"), preview={"ultrafast": ["vip"]}, service_tiers=tiers)
    done = run_reload(environment, "--port", str(served.port))
    assert (done.returncode, done.stdout) == (0, f"Reloaded {path} on port {served.port}.\n")

    assert ask("vip", "ultrafast") == (200, "ultrafast")
    assert (ask("leaving"), ask("other")) == ((401, "invalid_api_key"), (200, "default"))
    assert ask("vip", "flex") == (429, "resource_unavailable")
    metrics = served.http.get("/metrics", headers=as_("vip")).text
    assert 'twospeed_sequences_admitted{model="fast"} 16.0' in metrics, "all streams run on, and are counted"
    wait_more(5)
    leave.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert all(json.loads(event)["choices"] for events in read for event in events)
    while 'twospeed_sequences_admitted{model="fast"} 0.0' not in metrics:
        metrics = served.http.get("/metrics", headers=as_("vip")).text
    served.wait_line("configuration reloaded")


def test_a_wrong_file_is_refused_and_a_changed_model_waits_for_a_restart(
    serve: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    served = serve()
    at = ("--port", str(served.port))
    path = configure(tmp_path, {"max_queue": -1})
    done = run_reload(environment, *at)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{path}:1: server.max_queue: Input should be greater" in done.stderr
    assert "Nothing has changed" in done.stderr
    served.wait_line("not reloaded, nothing has changed: .*server.max_queue")

    configure(tmp_path, {}, models={"fast": {"backend": "fake"}, "new": {"backend": "fake"}})
    done = run_reload(environment, *at)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "Needs a restart to take effect: models.fast, models.new"
    served.wait_line("needs a restart to take effect: models.fast, models.new")
    assert [model["id"] for model in served.http.get("/v1/models").json()["data"]] == ["fast", "auto"]

    served.process.send_signal(signal.SIGHUP)  # without our command
    while sum("configuration reloaded" in line for line in served.lines) < 2:
        time.sleep(0.01)
    record = Path(environment["TWOSPEED_HOME"], "run", f"{served.port}.json")
    assert json.loads(record.read_text())["pid"] == served.process.pid
    assert served.end(signal.SIGTERM) == 0
    assert not record.exists()
    assert run_reload(environment, *at).returncode == 1


@pytest.mark.parametrize(
    ("host", "code", "says"), [("127.0.0.1", 1, "port {port} on 127.0.0.1 is in use"), ("10.0.0.1", 2, "api_keys")]
)
def test_what_keeps_it_from_starting_is_one_line(
    tmp_path: Path, environment: dict[str, str], host: str, code: int, says: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(tmp_path, {}, "--port", str(port), "--host", host),
            env=environment,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == code
    assert says.format(port=port) in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_trace_goes_on_after_a_crash_and_can_be_replayed(
    serve: Any, tmp_path: Path, environment: dict[str, str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    served = serve("--trace", str(trace))
    body = {"model": "fast", "prompt": "the secret word is xylophone", "max_tokens": 20, "service_tier": "priority"}
    assert served.http.post("/v1/completions", json=body).status_code == 200
    deadline = time.monotonic() + WAIT_S
    while b'"event":"release"' not in trace.read_bytes():  # it is written once a second
        assert time.monotonic() < deadline
        time.sleep(0.05)
    served.engine().kill()
    served.wait_line("restarting")
    served.wait_line("fast: ready")
    while served.http.post("/v1/completions", json=body).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.end(signal.SIGTERM) == 0
    assert trace.read_bytes().count(b'"event":"header"') == 2
    assert b"xylophone" not in trace.read_bytes()
    replay = [sys.executable, "-m", "twospeed", "replay", str(trace), "--slots", "1"]
    done = subprocess.run(replay, check=False, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("same plans\n")
    assert "in 2 engine processes" in done.stdout
    assert "priority fast" in done.stdout


@pytest.mark.parametrize("what", ["no folder", "another file"])
def test_a_trace_that_cannot_be_written_is_told_at_the_start(
    tmp_path: Path, environment: dict[str, str], what: str
) -> None:
    trace = tmp_path / "models.yaml" if what == "another file" else tmp_path / "no" / "trace.jsonl"
    started = command(tmp_path, {}, "--trace", str(trace))
    before = (tmp_path / "models.yaml").read_bytes()
    done = subprocess.run(started, check=False, env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(trace) in done.stderr
    assert (tmp_path / "models.yaml").read_bytes() == before
