"""`twospeed bench quick` as a whole, against the fake model: real processes, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

FAKE = """
version: 1
defaults: {context: 16384}
models:
  fast: {backend: fake}
  smart: {backend: fake}
  spare: {backend: fake, preload: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.yaml").write_text(FAKE)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "twospeed", "bench", "quick", *words]


def environment(folder: Path, step_ms: float = 1) -> dict[str, str]:
    return {**os.environ, "TWOSPEED_HOME": str(folder / "home"), "TWOSPEED_FAKE_STEP_MS": str(step_ms)}


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = environment(folder)
    return subprocess.run(
        command(*words), cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=110
    )


def check_model(model: dict[str, Any]) -> None:
    assert model["one"]["raw"] == []
    # a step takes 1 ms at least, so there is a speed that nothing can exceed
    assert all(0 < rate < 1000 for rate in model["one"]["http"])
    assert [s["tokens"] for s in model["one"]["streams"]] == [97] * 4
    four, sixteen = model["many"]
    assert (four["count"], sixteen["count"]) == (4, 16)
    assert four["whole"] < 4000
    assert sixteen["whole"] < 16000
    assert all(s["cached_tokens"] < 10 and len(s["at_ms"]) == 64 for s in sixteen["streams"])
    assert len(model["prefill"]["ttft_ms"]) == 3
    assert all(400 <= s["prompt_tokens"] <= 600 and s["cached_tokens"] < 10 for s in model["prefill"]["streams"])
    turns = model["turns"]
    assert len(turns) == 8
    assert all(t["prefilled"] == t["prompt"] - t["cached"] for t in turns)
    assert all(0 < t["prefilled"] <= t["new"] + 2 for t in turns[1:])
    assert 1350 <= model["arrival"]["prompt_tokens"] <= 1650
    assert model["arrival"]["covered"]
    assert len(model["arrival"]["gaps_alone_ms"]) > 20


def test_a_whole_run_measures_every_figure(folder: Path) -> None:
    done = run(folder, "--json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "out.json").read_text())
    assert report["errors"] == []
    assert list(report["models"]) == ["fast", "smart"]
    for model in report["models"].values():
        check_model(model)
    assert report["pair"]["together"].keys() == {"fast", "smart"}
    assert all(len(rates) == 2 for rates in report["pair"]["alone"].values())
    lines = [line for model in report["models"].values() for line in model["lines"]] + report["pair_lines"]
    asks = [ask for line in lines for ask in line["asks"]]
    assert len(asks) == 2 * 4 + 3
    assert all(ask["met"] is not None for ask in asks)
    assert report["machine"]["cores"] >= 1
    assert report["versions"]["twospeed"]
    for line in lines:
        assert line["title"] in done.stdout
    assert "fast: a long prompt beside a stream" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_running_server_is_measured_under_its_url(folder: Path, start_server: Any) -> None:
    running = start_server({"models": {"solo": {"backend": "fake", "context": 16384}}})
    running.wait_ready("solo")
    done = run(folder, "--url", f"{running.url}/v1", "--json", "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "out.json").read_text())
    assert list(report["models"]) == ["solo"]
    assert report["pair"] is None
    assert running.http.get("/readyz").status_code == 200
    assert running.held() == 0


def test_a_measure_that_fails_is_named_and_the_others_go_on(folder: Path) -> None:
    (folder / "models.yaml").write_text("version: 1\nmodels:\n  m: {backend: fake, context: 2000, kv_tokens: 8192}\n")
    done = run(folder, "--json", "out.json")
    assert done.returncode == 1
    report = json.loads((folder / "out.json").read_text())
    assert [error.split(":")[1] for error in report["errors"]] == [" a long prompt beside a stream"]
    assert "maximum context length" in done.stdout
    assert len(report["models"]["m"]["turns"]) == 8


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--models", "fats"], "no model is named 'fats'; there are: fast, smart, spare"),
        (["--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
    ],
)
def test_what_cannot_be_measured_is_one_line(folder: Path, words: list[str], problem: str) -> None:
    done = run(folder, *words)
    assert done.returncode == 1
    assert done.stderr.startswith(problem)
    assert len(done.stderr.splitlines()) == 1


def test_a_model_that_was_not_fetched_is_not_waited_for(folder: Path) -> None:
    (folder / "models.yaml").write_text("version: 1\nmodels:\n  m: {sources: [file:none.gguf]}\n")
    done = run(folder)
    assert done.returncode == 1
    assert done.stderr == "m is not here yet; get it with: twospeed pull m\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_with_an_interrupted_run(folder: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        command(), cwd=folder, env=environment(folder, 10), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stderr is not None
        for line in bench.stderr:
            if "one stream" in line:
                break
        children = psutil.Process(bench.pid).children(recursive=True)
        assert len(children) >= 2
        bench.send_signal(number)
        _, rest = bench.communicate(timeout=30)
    assert bench.returncode == 130
    assert "interrupted" in rest
    assert "Traceback" not in rest
    deadline = time.monotonic() + 10
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.wait(deadline - time.monotonic())
