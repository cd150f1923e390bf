"""The models' life, with an engine and a store that do as told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from twospeed.config import Config, Model
from twospeed.engine.interface import DraftSource
from twospeed.errors import ApiError
from twospeed.gateway import catalog as module
from twospeed.gateway.catalog import Catalog
from twospeed.types import ModelInfo, ModelStatus

INFO = ModelInfo(
    description="", context=1, kv_tokens=1, slots=1, vocab_size=1, parameters=1, size_bytes=1, chat_template=True,
    infill=True, fingerprint="fp",
)  # fmt: skip


class DownloadError(Exception):
    pass


class Progress(NamedTuple):
    name: str
    phase: str
    done: int
    total: int | None


class Engine:
    def __init__(self) -> None:
        self.statuses: dict[str, ModelStatus] = {}
        self.loads: list[str] = []
        self.drafts: dict[str, DraftSource | None] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, name: str, path: Path | None, model: Model, draft: DraftSource | None) -> None:
        self.loads.append(name)
        self.drafts[name] = draft
        await self.gate.wait()
        self.statuses[name] = ModelStatus(name=name, state="ready", info=INFO)

    def status(self, name: str) -> ModelStatus | None:
        return self.statuses.get(name)


class Files:
    """Downloads, each of which waits for `go(name)`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.events = {name: threading.Event() for name in ("fast", "smart", "lazy")}
        self.errors: dict[str, Exception] = {}

    def ensure(
        self, name: str, model: Model, progress: Callable[[Progress], None], *, cancelled: threading.Event
    ) -> Path:
        self.asked.append(name)
        progress(Progress(name, "downloading", 250, 1000))
        while not self.events[name].wait(0.005):
            if cancelled.is_set():
                raise DownloadError("cancelled")
        if error := self.errors.get(name):
            raise error
        return Path(name)

    def go(self, *names: str) -> None:
        for name in names:
            self.events[name].set()


async def until(condition: Callable[[], bool]) -> None:
    """For what a thread does."""
    async with asyncio.timeout(5):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


def make(load_wait_s: float = 5, **models: Any) -> Config:
    source = {"sources": ["file:/x"]}
    found = {"fast": source, "smart": source, "lazy": source | {"preload": False}} | models
    return Config.model_validate({"version": 1, "server": {"load_wait_s": load_wait_s}, "models": found})


def play(act: Callable[[Catalog, Engine, Files], Awaitable[None]], config: Config | None = None) -> list[ModelStatus]:
    """Run `act` with a started catalog; the states it went through."""
    seen: list[ModelStatus] = []

    async def run() -> None:
        engine, files = Engine(), Files()
        catalog: Any = Catalog(config or make(), engine, files, known=(DownloadError,), on_state=seen.append)  # type: ignore[arg-type]
        catalog.start()
        try:
            await act(catalog, engine, files)
        finally:
            await catalog.close()

    asyncio.run(run())
    return seen


def test_the_first_model_is_ready_while_the_second_downloads() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.go("fast")
        assert await catalog.ready("fast") == INFO
        assert [status.state for status in catalog.statuses()] == ["ready", "downloading", "idle"]
        files.go("smart")
        await catalog.ready("smart")
        assert (files.asked, engine.loads) == (["fast", "smart"], ["fast", "smart"])

    seen = play(act)
    assert [status.state for status in seen if status.name == "fast"] == [
        "downloading", "downloading", "loading", "ready",
    ]  # fmt: skip


def test_a_load_does_not_hold_up_the_next_download() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        engine.gate.clear()
        files.go("fast")
        await until(lambda: files.asked == ["fast", "smart"])
        assert catalog.status("fast").state == "loading"
        engine.gate.set()

    play(act)


def test_a_lazy_model_is_fetched_by_the_first_who_asks_once() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.go("lazy")
        await asyncio.gather(*(catalog.ready("lazy") for _ in range(5)))
        assert files.asked.count("lazy") == 1

    play(act)


def test_who_waits_too_long_is_told_how_far_it_is() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        with pytest.raises(ApiError, match="25%") as caught:
            await catalog.ready("fast")
        assert (caught.value.code, caught.value.status) == ("model_not_ready", 503)
        files.go("fast")
        await until(lambda: catalog.status("fast").state == "ready")

    play(act, make(load_wait_s=0.1))


def test_a_failure_is_told_and_tried_again_after_a_pause_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        nonlocal now
        files.errors["fast"] = DownloadError("disk full")
        files.go("fast")
        for pause in (5, 10, 20):
            tried = files.asked.count("fast")
            with pytest.raises(ApiError, match="disk full") as caught:
                await catalog.ready("fast")
            assert (caught.value.code, caught.value.retry_after) == ("model_failed", pause + 1)
            with pytest.raises(ApiError, match="disk full"):
                await catalog.ready("fast")
            assert files.asked.count("fast") == max(tried, 1) if pause == 5 else tried + 1
            now += pause + 0.1
        files.errors.clear()
        assert await catalog.ready("fast") == INFO

    play(act)


def test_waking_loads_what_is_idle_and_tries_again_what_failed_but_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        nonlocal now
        files.errors["lazy"] = DownloadError("disk full")
        files.go("lazy")
        for _ in range(3):
            catalog.wake("lazy")
        await until(lambda: catalog.status("lazy").state == "failed")
        catalog.wake("lazy")
        assert files.asked.count("lazy") == 1
        now += 5.1
        files.errors.clear()
        catalog.wake("lazy")
        await until(lambda: catalog.status("lazy").state == "ready")
        catalog.wake("lazy")
        assert (files.asked.count("lazy"), engine.loads.count("lazy")) == (2, 1)

    play(act)


def test_of_an_unexpected_failure_only_the_type_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.errors["fast"] = ValueError("private")
        files.go("fast")
        with pytest.raises(ApiError, match="ValueError") as caught:
            await catalog.ready("fast")
        assert "private" not in caught.value.message

    play(act)
    assert "private" not in caplog.text


def test_after_a_crash_it_waits_for_the_engine_to_be_back() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.go("fast")
        await catalog.ready("fast")
        engine.statuses["fast"] = ModelStatus(name="fast", state="loading")
        waiting = asyncio.create_task(catalog.ready("fast"))
        await asyncio.sleep(0)
        assert catalog.status("fast").state == "loading"
        engine.statuses["fast"] = ModelStatus(name="fast", state="ready", info=INFO)
        assert await waiting == INFO
        assert engine.loads.count("fast") == 1
        engine.statuses["fast"] = ModelStatus(name="fast", state="failed", detail="crash loop")
        with pytest.raises(ApiError, match="crash loop") as caught:
            await catalog.ready("fast")
        assert caught.value.code == "engine_failed"

    play(act)


def test_closing_ends_downloads_and_those_who_wait() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        waiting = asyncio.create_task(catalog.ready("fast"))
        await asyncio.sleep(0.01)
        await catalog.close()
        with pytest.raises(ApiError) as caught:
            await waiting
        assert caught.value.code == "shutting_down"

    play(act)


def test_names_and_aliases() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        assert (catalog.resolve("fast"), catalog.resolve("gpt")) == ("fast", "fast")
        with pytest.raises(ApiError) as caught:
            catalog.resolve("nope")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    play(act, make(fast={"sources": ["file:/x"], "aliases": ["gpt"]}))


def test_a_draft_is_there_before_the_model_that_it_writes_for_is_loaded() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.go("fast", "smart")
        await until(lambda: "lazy" in files.asked)
        await catalog.ready("fast")
        assert engine.drafts == {"fast": None}
        files.go("lazy")
        await catalog.ready("smart")
        assert engine.drafts["smart"] == DraftSource("lazy", Path("lazy"), catalog.model("lazy"))
        assert catalog.status("lazy").state == "idle"  # for itself nobody has asked

    lazy = {"sources": ["file:/x"], "preload": False, "aliases": ["small"]}
    play(act, make(smart={"sources": ["file:/x"], "draft": {"model": "small"}}, lazy=lazy))


def test_a_draft_that_cannot_be_had_fails_the_model_that_needs_it() -> None:
    async def act(catalog: Catalog, engine: Engine, files: Files) -> None:
        files.errors["lazy"] = DownloadError("lazy: no such file")
        files.go("fast", "smart", "lazy")
        with pytest.raises(ApiError, match="lazy: no such file"):
            await catalog.ready("smart")
        assert "smart" not in engine.loads

    play(act, make(smart={"sources": ["file:/x"], "draft": {"model": "lazy"}}))
