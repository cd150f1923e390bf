"""The models' life: fetched, loaded, ready, failed, tried again. Knows no wire format and runs no request.

Models with `preload` are fetched one after the other in the configuration's order, so the small one is up while
the large one still downloads; the others when the first request asks for them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..config import Config, Model
from ..engine.interface import DraftSource, Engine
from ..errors import ApiError
from ..observe.logs import describe
from ..types import ModelInfo, ModelState, ModelStatus
from .auth import ANYONE, Principal

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 5.0
RETRY_MAX_S = 300.0
# An engine that restarts after a crash tells nobody when it is back, so those who wait ask this often.
POLL_S = 0.05


class Progress(Protocol):
    """How far a download is: bytes, `total` may be unknown."""

    @property
    def name(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int | None: ...


class Files(Protocol):
    """Where weights come from. Blocking: called in a thread."""

    def ensure(
        self,
        name: str,
        model: Model,
        progress: Callable[[Progress], None],
        *,
        cancelled: threading.Event | None = None,
    ) -> Path:
        """The model's verified file, fetched if need be."""
        ...


class LoadingEngine(Engine, Protocol):
    """An engine that models are loaded into."""

    async def load(self, name: str, path: Path | None, model: Model, draft: DraftSource | None = None) -> None:
        """Load `model`, with what drafts for it; raises ApiError `model_failed`."""
        ...


@dataclass(slots=True)
class _Entry:
    """One model, as far as the catalog has come with it. After `ready` the engine's own word counts."""

    model: Model
    state: ModelState = "idle"
    detail: str = ""
    progress: float | None = None
    task: asyncio.Task[None] | None = None
    failures: int = 0
    retry_at: float = 0.0  # time.monotonic()


class Catalog:
    """All configured models. Used from one event loop."""

    def __init__(
        self,
        config: Config,
        engine: LoadingEngine,
        files: Files,
        *,
        known: tuple[type[Exception], ...] = (),
        on_progress: Callable[[Progress], None] | None = None,
        on_state: Callable[[ModelStatus], None] | None = None,
    ) -> None:
        """`known`: exceptions of `files` whose message is meant for people; of others only the type is told.

        `on_progress` is called in the thread of a download, `on_state` in the event loop at each change.
        """
        self._on_progress = on_progress
        self._on_state = on_state
        self._config = config
        self._known: tuple[type[Exception], ...] = (ApiError, *known)
        self._engine = engine
        self._files = files
        self._entries = {name: _Entry(model) for name, model in config.models.items()}
        self._one_download = asyncio.Lock()
        self._closing = asyncio.Event()
        self._cancelled = threading.Event()

    def start(self) -> None:
        """Begin to bring up every model with `preload`."""
        for name, entry in self._entries.items():
            if entry.model.preload:
                self._bring_up(name, entry, self._one_download)

    def reload(self, config: Config) -> None:
        """Go by `config` from now on, which has the same models."""
        self._config = config

    def resolve(self, name: str, principal: Principal = ANYONE) -> str:
        """The model that `name`, a name or an alias, stands for. Raises `model_not_found`.

        For one who may not use it a model doesn't exist.
        """
        found = self._config.resolve(name)
        if found is None or not principal.may_use(found):
            known = ", ".join(repr(known) for known in self._config.models if principal.may_use(known))
            raise ApiError(
                "model_not_found", f"The model {name[:64]!r} does not exist. There are: {known}.", param="model"
            )
        return found

    def model(self, name: str) -> Model:
        """The configuration of model `name` (no alias)."""
        return self._entries[name].model

    def preloaded(self) -> list[str]:
        """The names of the models that are loaded at start."""
        return [name for name, entry in self._entries.items() if entry.model.preload]

    def settled(self) -> bool:
        """Whether every model with `preload` is loaded, or has failed for now."""
        return all(self._entries[name].state in ("ready", "failed") for name in self.preloaded())

    def status(self, name: str) -> ModelStatus:
        """How model `name` (no alias) stands."""
        entry = self._entries[name]
        if entry.state == "ready":
            status = self._engine.status(name)
            if status is not None:
                return status
        return ModelStatus(name=name, state=entry.state, detail=entry.detail, progress=entry.progress)

    def statuses(self) -> list[ModelStatus]:
        """How all models stand, in the configuration's order."""
        return [self.status(name) for name in self._entries]

    async def ready(self, name: str) -> ModelInfo:
        """Wait until `name` (no alias) can be used, at most `server.load_wait_s`; start to load it if need be.

        Raises `model_not_ready` after that time, `model_failed` with the reason, `engine_failed`,
        `shutting_down`.
        """
        status = self.status(name)
        if status.state == "ready" and status.info is not None:
            return status.info
        try:
            async with asyncio.timeout(self._config.server.load_wait_s):
                return await self._wait(name)
        except TimeoutError:
            status = self.status(name)
            percent = "" if status.progress is None else f", {status.progress:.0%}"
            message = f"Model {name!r} is not ready yet: {status.state}{percent}. {status.detail}".rstrip()
            raise ApiError("model_not_ready", message) from None

    def wake(self, name: str) -> None:
        """Begin to bring up model `name` (no alias), where it is idle or failed long enough ago. Waits for nothing."""
        entry = self._entries[name]
        due = entry.state == "idle" or (entry.state == "failed" and time.monotonic() >= entry.retry_at)
        if due and not self._closing.is_set() and (entry.task is None or entry.task.done()):
            self._bring_up(name, entry, None)

    async def close(self) -> None:
        """Stop downloads and loads; those who wait get `shutting_down`."""
        self._closing.set()
        self._cancelled.set()
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self, name: str) -> ModelInfo:
        entry = self._entries[name]
        while True:
            if self._closing.is_set():
                raise ApiError("shutting_down", "The server is shutting down.")
            status = self.status(name)
            if status.state == "ready" and status.info is not None:
                return status.info
            if entry.state == "ready":  # loaded once; the engine is about to be back, or gave up
                if status.state == "failed":
                    raise ApiError("engine_failed", status.detail or "The engine failed and was given up.")
                await asyncio.sleep(POLL_S)
                continue
            if entry.state == "failed" and time.monotonic() < entry.retry_at:
                wait = int(entry.retry_at - time.monotonic()) + 1
                raise ApiError("model_failed", f"Model {name!r} can't be used: {entry.detail}", retry_after=wait)
            task = entry.task
            if task is None or task.done():
                task = self._bring_up(name, entry, None)
            await asyncio.wait({task})

    def _bring_up(self, name: str, entry: _Entry, turn: asyncio.Lock | None) -> asyncio.Task[None]:
        entry.task = asyncio.create_task(self._fetch_and_load(name, entry, turn), name=f"load-{name}")
        return entry.task

    async def _fetch_and_load(self, name: str, entry: _Entry, turn: asyncio.Lock | None) -> None:
        try:
            path = await self._in_turn(name, entry, name, turn)
            draft, found = None, self._config.draft_of(name)
            if found is not None:
                draft = DraftSource(found, await self._in_turn(name, entry, found, turn), self._entries[found].model)
            self._set(name, entry, "loading")
            await self._engine.load(name, path, entry.model, draft)
        except Exception as exc:  # whatever it is, it must end up in the model's status, where it can be seen
            self._fail(name, entry, exc)
        else:
            entry.failures = 0
            self._set(name, entry, "ready")

    async def _in_turn(self, name: str, entry: _Entry, wanted: str, turn: asyncio.Lock | None) -> Path | None:
        """The file of model `wanted`, which `name` needs; None: there is none to have."""
        if self._entries[wanted].model.backend == "fake":
            return None
        if turn is None:
            return await self._fetch(name, entry, wanted)
        self._set(name, entry, "downloading", "waits for its turn to download")
        async with turn:
            return await self._fetch(name, entry, wanted)

    async def _fetch(self, name: str, entry: _Entry, wanted: str) -> Path:
        def note(progress: Progress) -> None:  # runs in the store's thread: plain assignments only
            total = progress.total or 0
            entry.progress = min(progress.done / total, 1.0) if total else None
            of = f" of {total / 1e6:.0f}" if total else ""
            entry.detail = f"{progress.phase}: {progress.done / 1e6:.0f}{of} MB"
            if self._on_progress is not None:
                self._on_progress(progress)

        self._set(name, entry, "downloading")
        model = self._entries[wanted].model
        return await asyncio.to_thread(self._files.ensure, wanted, model, note, cancelled=self._cancelled)

    def _fail(self, name: str, entry: _Entry, exc: Exception) -> None:
        pause = min(RETRY_FIRST_S * 2**entry.failures, RETRY_MAX_S)
        entry.failures += 1
        entry.retry_at = time.monotonic() + pause
        detail = str(exc) if isinstance(exc, self._known) else f"unexpected {type(exc).__name__}, see the log"
        if isinstance(exc, self._known):
            logger.error("model %s: %s", name, detail)
        else:
            logger.error("model %s failed to load: %s", name, describe(exc))
        self._set(name, entry, "failed", detail)

    def _set(self, name: str, entry: _Entry, state: ModelState, detail: str = "") -> None:
        entry.state, entry.detail, entry.progress = state, detail, None
        if self._on_state is not None:
            self._on_state(self.status(name))
