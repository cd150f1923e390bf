"""`twospeed bench tiers` as a whole: against the fake model, and against a server of another make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from twospeed.types import TIERS

FAKE = """
version: 1
defaults: {context: 16384, slots: 4}
models:
  smart: {backend: fake}
"""
COMMAND = (sys.executable, "-m", "twospeed", "bench", "tiers")


def environment(folder: Path, step_ms: float) -> dict[str, str]:
    return {**os.environ, "TWOSPEED_HOME": str(folder / "home"), "TWOSPEED_FAKE_STEP_MS": str(step_ms)}


def bench(folder: Path, *words: str, step_ms: float = 1) -> subprocess.CompletedProcess[str]:
    (folder / "models.yaml").write_text(FAKE)
    command = [*COMMAND, "--json", "out.json", "--html", "out.html", "--watch", "0.3", *words]
    env = environment(folder, step_ms)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=110)


def test_a_whole_run_measures_every_figure(tmp_path: Path) -> None:
    done = bench(tmp_path, "--loads", "2", "--workloads", "chat,agent", "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["errors"] == []
    cells = {(c["workload"], c["load"], c["tier"]): c for c in report["cells"]}
    assert len(cells) == 2 * 2 * 2
    assert all(c["failed"] == c["silent"] == 0 and c["rate"] > 0 for c in cells.values())
    assert cells["chat", 2, "ultrafast"]["samples"] == 4
    assert cells["agent", 2, "ultrafast"]["samples"] == 14
    assert cells["agent", 0, "default"]["cached_tokens"] > 0
    assert all(c["cached_tokens"] < 100 for c in cells.values() if c["workload"] == "chat")
    for cell in cells.values():
        assert (cell["background"] is not None) == (cell["load"] == 2)
    assert cells["chat", 2, "ultrafast"]["background"]["during"] > 0
    chat = next(c for c in report["comparisons"] if (c["workload"], c["load"]) == ("chat", 2))
    assert [d["at"] for d in chat["texts"]] == [None] * 4
    assert report["conserved"]["whole"] > 0
    assert [g["prompts"] for g in report["gaps"]] == [1, 8]
    assert report["gaps"][0]["prompt_tokens"] > 1300
    assert len(report["seats"]["together"]) == 2
    assert report["seats"]["extras"][0]["number"] == 3
    for line in report["lines"]:
        assert line["title"] in done.stdout
    page = (tmp_path / "out.html").read_text()
    assert "natural chat: output" in page
    assert "agent loop, load 2" in page


def test_streams_that_get_nothing_are_told_and_counted(tmp_path: Path, start_server: Any) -> None:
    """One slot and three streams before it: the measured one waits for longer than anyone is ready to."""
    plain = {tier: {"speculation": "off"} for tier in TIERS}
    config = {"models": {"solo": {"backend": "fake", "context": 16384, "slots": 1}}, "service_tiers": plain}
    running = start_server(config, {"TWOSPEED_FAKE_STEP_MS": "20"})
    running.wait_ready("solo")
    words = ("--loads", "3", "--workloads", "chat", "--repeat", "1", "--patience", "1", "--no-extras")
    done = bench(tmp_path, "--url", running.url, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["model"] == "solo"
    cell = next(c for c in report["cells"] if (c["load"], c["tier"]) == (3, "default"))
    assert (cell["samples"], cell["silent"]) == (2, 2)
    assert cell["ttft_p95_ms"]["bound"] == ">="
    assert cell["ttft_p95_ms"]["value"] >= 1000
    assert "no token within 1.0 s: 2 of 2" in done.stdout
    assert "1 of the 3 streams had tokens" in done.stdout
    running.wait_idle()  # the background ended with the run


class Other(BaseHTTPRequestHandler):
    """A server that knows no tiers, tells no counts, and ends its lines as SSE libraries do."""

    protocol_version = "HTTP/1.1"
    seen: list[dict[str, Any]]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        del format, args

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        models = b'{"data": [{"id": "theirs"}]}'
        self._reply(*((200, models) if self.path == "/v1/models" else (404, b"no such page")))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append(body)
        if "service_tier" in body:
            self._reply(400, b'{"error": {"message": "Unknown field: service_tier"}}')
            return
        self.send_response(200)
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(30):
            event = {"choices": [{"index": 0, "delta": {"content": f"word{number} "}}]}
            self.wfile.write(b"data: %b\r\n\r\n" % json.dumps(event).encode())
        self.wfile.write(b"data: [DONE]\r\n\r\n")


@contextmanager
def other_server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []
    handler = type("Handler", (Other,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", seen
        finally:
            server.shutdown()
            thread.join()


def test_a_server_of_another_make_is_asked_what_it_knows(tmp_path: Path) -> None:
    with other_server() as (url, seen):
        words = ("--loads", "2", "--workloads", "chat,code-edit-predicted", "--repeat", "1", "--no-extras")
        done = bench(tmp_path, "--url", url, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["model"] == "theirs"
    assert not {"cache_prompt", "ignore_eos"} & {key for body in seen for key in body}
    assert any(body.get("prediction") for body in seen)
    assert sum("service_tier" in body for body in seen) == 1  # asked once, not again
    assert "the server refuses `service_tier`, so it was left out" in done.stdout
    assert "served not told" in done.stdout
    cells = report["cells"]
    assert all(c["drafted_per_step"] is None and c["cached_tokens"] is None and c["tokens"] > 0 for c in cells)
    assert all(c["uncompared"].startswith("the prompts differ") for c in report["comparisons"])
    assert "not told" in (tmp_path / "out.html").read_text()


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(FAKE)
    words = ("--loads", "2,3", "--workloads", "chat", "--repeat", "1", "--no-extras", "--json", "out.json")
    with subprocess.Popen(
        [*COMMAND, "--watch", "3", *words],
        cwd=tmp_path,
        env=environment(tmp_path, 1),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "load 2: starting" in line:
                running.send_signal(signal.SIGINT)
                break
        rest = running.stderr.read()
    assert running.returncode == 130
    assert rest.splitlines()[-1] == "interrupted"
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["interrupted"]
    assert {cell["load"] for cell in report["cells"]} == {0}


def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    for words, problem in [
        (("--workloads", "chta"), "no workload is named 'chta'; there are: chat,"),
        (("--model", "smrat"), "no model is named 'smrat'"),
        (("--url", "http://127.0.0.1:9"), "no server answers at http://127.0.0.1:9"),
    ]:
        done = bench(tmp_path, *words)
        assert done.returncode == 1
        assert done.stderr.startswith(problem)
        assert len(done.stderr.splitlines()) == 1
