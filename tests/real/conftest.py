"""One `twospeed serve` with the three real models, in processes of its own, for all tests here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from twospeed.bench.child import serving, until_ready
from twospeed.config import Config, Model
from twospeed.configfile import find_config, load_config

NAMES = ["tiny", "fast", "smart"]


@dataclass
class Server:
    """A running server and what its tests need of it."""

    url: str
    config: Config
    clients: ExitStack

    def sdk(self) -> openai.OpenAI:
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=300)
        return self.clients.enter_context(client)

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300)

    def processes(self) -> dict[str, psutil.Process]:
        """The gateway's process and its engine's."""
        gateway = next(p for p in psutil.Process().children() if "serve" in p.cmdline())
        engine = next(p for p in gateway.children() if "twospeed.engine.worker" in p.cmdline())
        return {"gateway": gateway, "engine": engine}

    def wait_ready(self, name: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        with self.http() as http:
            while http.get("/readyz", params={"model": name}).status_code != 200:
                assert time.monotonic() < deadline, f"{name} is not ready"
                time.sleep(0.1)


@pytest.fixture(scope="session")
def server(real_model: Callable[[str], tuple[Path, Model]]) -> Iterator[Server]:
    for name in NAMES:
        real_model(name)
    config = load_config(find_config())
    with serving(config, NAMES, None) as endpoint, ExitStack() as clients:
        asyncio.run(until_ready(endpoint, NAMES, print))
        yield Server(endpoint.url, config, clients)
