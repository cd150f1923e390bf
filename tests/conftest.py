"""A real server on 127.0.0.1 for the tests: uvicorn in a thread, the engine in a child process, the fake model."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import httpx
import openai
import pytest
from hypothesis import settings

from twospeed.api.server import Server, listen
from twospeed.app import create_app
from twospeed.config import Config, Model
from twospeed.configfile import find_config, load_config
from twospeed.gateway.gateway import Gateway
from twospeed.models.store import Store

# In CI the same examples every time: what passes once passes again. At home new ones, which find new mistakes.
settings.register_profile("ci", derandomize=True)
if os.environ.get("TWOSPEED_REQUIRE_REAL"):
    settings.load_profile("ci")

DEADLINE_S = 20.0

T = TypeVar("T")

# A shell's background job starts with SIGINT ignored, and so would every program that these tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_S) -> None:
    """For what another process does and nobody is told of."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.01)


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of `name` that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


@dataclass
class Running:
    """A server that runs."""

    url: str
    http: httpx.Client
    gateway: Gateway
    server: Server
    thread: threading.Thread
    clients: contextlib.ExitStack

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def openai(self, **options: Any) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self.url}/v1", max_retries=0, **{"api_key": "none"} | options)
        return self.clients.enter_context(client)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.http.get("/metrics").text, f"twospeed_{name}", **labels)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what)

    def wait_metric(self, name: str, value: float) -> None:
        wait_until(lambda: self.metric(name) == value, f"{name} == {value}")

    def on_loop(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in the server's event loop, where all of the gateway belongs."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as exc:
                done.set_exception(exc)

        self.server._loop.call_soon_threadsafe(run)
        return done.result(DEADLINE_S)

    def held(self) -> int:
        """Sequences that hold a permit."""
        return int(self.metric("sequences_admitted"))

    def wait_idle(self) -> None:
        """Until no permit is held and the engine makes no more steps (which take 20 ms at most)."""

        def idle() -> bool:
            steps = self.metric("step_seconds_count")
            time.sleep(0.1)
            return self.held() == 0 and self.metric("step_seconds_count") == steps

        wait_until(idle, "idle")

    def wait_ready(self, model: str) -> None:
        wait_until(lambda: self.http.get("/readyz", params={"model": model}).status_code == 200, f"{model} ready")


@contextlib.contextmanager
def run_server(home: Path, config: dict[str, Any], env: dict[str, str] | None = None, **app: Any) -> Iterator[Running]:
    """A server for `config`, whose `version`, `server` and `models` have defaults."""
    whole = {"version": 1, "models": {"fast": {"backend": "fake", "aliases": ["gpt-4o-mini"]}}} | config
    with mock.patch.dict(os.environ, {"TWOSPEED_HOME": str(home)} | (env or {})):
        web = create_app(Config.model_validate(whole), **app)
        listening = threading.Event()
        server = Server(web, web.state.gateway, listening.set)
        with listen("127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                assert listening.wait(DEADLINE_S)
                with httpx.Client(base_url=url, timeout=DEADLINE_S) as http, contextlib.ExitStack() as clients:
                    yield Running(url, http, web.state.gateway, server, thread, clients)
            finally:
                server.stop()
                thread.join(DEADLINE_S)
                assert not thread.is_alive()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, str] | None], Path]:
    """Where a server with this environment keeps its files: shared, so that a model's costs are measured once."""
    base = tmp_path_factory.mktemp("homes")
    return lambda env: base / "-".join(f"{key}_{value}" for key, value in sorted((env or {}).items()))


@pytest.fixture(scope="session")
def serve(home: Callable[[Any], Path]) -> Callable[..., contextlib.AbstractContextManager[Running]]:
    """Starts servers with a configuration and an environment: `with serve(config, env) as running`."""

    def start(
        config: dict[str, Any] | None = None, env: dict[str, str] | None = None, **app: Any
    ) -> contextlib.AbstractContextManager[Running]:
        return run_server(home(env), config or {}, env, **app)

    return start


@pytest.fixture
def start_server(serve: Any) -> Iterator[Callable[..., Running]]:
    """The same for one test: the servers end with it."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **app: stack.enter_context(serve(*args, **app))


@pytest.fixture(scope="session")
def server(serve: Any) -> Iterator[Running]:
    """One server with a fast model, for tests that leave nothing behind."""
    with serve({}) as running:
        running.wait_ready("fast")
        yield running


@pytest.fixture(scope="session")
def slow_server(serve: Any) -> Iterator[Running]:
    """One whose steps take 20 ms, with 2 slots and places for 2 more."""
    config = {"models": {"fast": {"backend": "fake", "slots": 2}}, "server": {"max_queue": 2}}
    with serve(config, {"TWOSPEED_FAKE_STEP_MS": "20"}) as running:
        running.wait_ready("fast")
        yield running


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], tuple[Path, Model]]:
    """Finds a model of models.yaml that `twospeed pull` fetched; the test is skipped where it was not, and
    fails where TWOSPEED_REQUIRE_REAL says that it must be there, as in CI."""
    config, store = load_config(find_config()), Store()

    def find(name: str) -> tuple[Path, Model]:
        model = config.models[name]
        path = store.find(name, model)
        if path is None:
            reason = f"the real model {name!r} is not here; get it with: twospeed pull {name}"
            if os.environ.get("TWOSPEED_REQUIRE_REAL"):
                pytest.fail(reason)
            pytest.skip(reason)
        return path, model

    return find
