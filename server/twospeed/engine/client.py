"""The embedded engine as the gateway sees it: requests in, chunks out, and a child process kept alive.

Runs in the gateway's event loop; implements interface.Engine. The child's life is supervisor's part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from ..config import Model
from ..errors import ApiError
from ..types import Chunk, GenerateRequest, ModelStatus, ServiceTier, Share, StepStats
from . import messages
from .interface import DraftSource
from .supervisor import Supervisor

_log = logging.getLogger("twospeed.engine")


class EngineClient:
    """One engine process and the requests it works on. `trace`: a file that its scheduler is recorded in."""

    def __init__(self, *, template_timeout_s: float, costs_folder: Path, trace: Path | None = None) -> None:
        self._supervisor = Supervisor(
            self._received, self._died, template_timeout_s=template_timeout_s, costs_folder=costs_folder, trace=trace
        )
        self._models: dict[str, messages.Load] = {}
        self._status: dict[str, ModelStatus] = {}
        self._loads: dict[str, asyncio.Future[None]] = {}
        self._requests: dict[str, asyncio.Queue[Chunk | ApiError]] = {}
        self._shares: messages.Tiers | None = None
        self._listeners: list[Callable[[StepStats], None]] = []
        self._closing = False

    @property
    def pid(self) -> int | None:
        """Of the child process; None while there is none."""
        return self._supervisor.pid

    async def start(self) -> None:
        """Start the child process."""
        await self._supervisor.start()

    async def load(self, name: str, path: Path | None, model: Model, draft: DraftSource | None = None) -> None:
        """Load a model and its draft, and wait until it serves. Raises ApiError `model_failed`, `engine_failed`."""
        load = messages.Load(
            name,
            str(path) if path else None,
            _json(model),
            draft and messages.DraftFile(draft.name, str(draft.path) if draft.path else None, _json(draft.model)),
        )
        self._models[name] = load
        self._status[name] = ModelStatus(name=name, state="loading")
        self._loads[name] = asyncio.get_running_loop().create_future()
        self._supervisor.send(load)
        await self._loads[name]

    def status(self, model: str) -> ModelStatus | None:
        return self._status.get(model)

    def share(self, shares: dict[ServiceTier, Share]) -> None:
        self._shares = messages.Tiers(shares)
        self._supervisor.send(self._shares)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self._listeners.append(listener)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        if self._closing:
            raise ApiError("shutting_down", "the server is shutting down")
        status = self._status.get(request.model)
        if status is None or status.state != "ready":
            raise self._not_ready(request.model, status)
        queue: asyncio.Queue[Chunk | ApiError] = asyncio.Queue()
        self._requests[request.id] = queue
        unfinished = request.n
        try:
            self._supervisor.send(messages.Generate(request))
            while unfinished:
                item = await queue.get()
                if isinstance(item, ApiError):
                    unfinished = 0
                    raise item
                unfinished -= item.finish_reason is not None
                yield item
        finally:
            self._requests.pop(request.id, None)
            if unfinished:
                self._supervisor.send(messages.Cancel(request.id))

    async def close(self) -> None:
        self._closing = True
        self._fail_all(ApiError("shutting_down", "the server is shutting down"))
        await self._supervisor.close()

    def _not_ready(self, model: str, status: ModelStatus | None) -> ApiError:
        if self._supervisor.failed:
            return ApiError("engine_failed", "the engine keeps crashing and was given up; restart the server")
        detail = f" ({status.detail})" if status and status.detail else ""
        if status and status.state == "failed":
            return ApiError("model_failed", f"model {model!r} could not be loaded{detail}")
        return ApiError("model_not_ready", f"model {model!r} is not ready yet{detail}")

    def _received(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Progress(stats, outs):
                for out in outs:
                    queue = self._requests.get(out.id)
                    if queue is not None:  # else cancelled a moment ago
                        queue.put_nowait(out.chunk)
                for listener in self._listeners:
                    listener(stats)
            case messages.Failed(request_id, code, text, param):
                queue = self._requests.get(request_id)
                if queue is not None:
                    queue.put_nowait(ApiError(code, text, param=param))
            case messages.Loaded(name, info):
                self._status[name] = ModelStatus(name=name, state="ready", info=info)
                self._loaded(name, None)
            case messages.LoadFailed(name, reason):
                self._status[name] = ModelStatus(name=name, state="failed", detail=reason)
                del self._models[name]  # not again after a restart
                self._loaded(name, ApiError("model_failed", f"model {name!r} could not be loaded: {reason}"))

    def _loaded(self, name: str, error: ApiError | None) -> None:
        future = self._loads.pop(name, None)
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _died(self, *, restarting: bool) -> None:
        """The child is gone. Its requests fail; after a restart its models are loaded again."""
        if restarting:
            self._fail_all(ApiError("engine_died", "the engine died while it worked on this; it is being restarted"))
            if self._shares is not None:
                self._supervisor.send(self._shares)
            for name, load in self._models.items():
                self._status[name] = ModelStatus(name=name, state="loading", detail="the engine was restarted")
                self._supervisor.send(load)
            return
        failed = ApiError("engine_failed", "the engine keeps crashing and was given up; restart the server")
        self._fail_all(failed)
        for name in self._models:
            self._status[name] = ModelStatus(name=name, state="failed", detail=failed.message)
            self._loaded(name, failed)

    def _fail_all(self, error: ApiError) -> None:
        for queue in self._requests.values():
            queue.put_nowait(error)
        self._requests.clear()


def _json(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json")
