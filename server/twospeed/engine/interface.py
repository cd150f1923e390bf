"""What the gateway sees of an engine, whichever stands behind it: the embedded one, a fake, an upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from ..config import Model
from ..types import Chunk, GenerateRequest, ModelStatus, ServiceTier, Share, StepStats


class DraftSource(NamedTuple):
    """The model that writes ahead for another, and its file. `path=None`: it needs none."""

    name: str
    path: Path | None
    model: Model


class Engine(Protocol):
    """Serves one or more models. Every method is called from one asyncio event loop."""

    def status(self, model: str) -> ModelStatus | None:
        """How `model` stands in this engine; None if it was never asked to load it."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Run `request` and yield its chunks as they come.

        Closing the iterator (`aclose`, or cancelling the task that awaits it) cancels the work within one
        step. Raises ApiError: `context_length_exceeded`, `invalid_template`, `invalid_value` before the
        first chunk; `engine_died`, `engine_failed`, `engine_error`, `model_not_ready`, `shutting_down` at
        any time.
        """
        ...

    def share(self, shares: dict[ServiceTier, Share]) -> None:
        """How service tiers share the device from now on; what runs goes on."""
        ...

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call `listener` after every step."""
        ...

    async def close(self) -> None:
        """End the engine; what still runs fails with `shutting_down`."""
        ...
