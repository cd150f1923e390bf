"""Taking in a changed models.yaml while requests run: what may change at run time, and what needs a restart.

Reading the file is the caller's: it gives a function that does it, called in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..config import Config
from ..observe.logs import describe
from .auth import StartRefusedError, check_exposure
from .gateway import Gateway

logger = logging.getLogger(__name__)

_FIXED = ("host", "port", "template_timeout_s")  # of `server`: bound or handed to the engine when it started


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a reload. `notes`: what was wrong with the file; or what of it waits for a restart."""

    applied: bool
    notes: list[str]


def merged(running: Config, read: Config) -> tuple[Config, list[str]]:
    """`read` as far as a running server can take it, and the keys of models.yaml that need a restart."""
    names = [name for name in {**running.models, **read.models} if running.models.get(name) != read.models.get(name)]
    fixed = {key: getattr(running.server, key) for key in _FIXED}
    changed = [f"server.{key}" for key, value in fixed.items() if getattr(read.server, key) != value]
    waiting = [f"models.{name}" for name in names] + changed
    server = read.server.model_copy(update=fixed)
    config = read.model_copy(update={"models": running.models, "defaults": running.defaults, "server": server})
    auto = config.routes.auto
    if not all(config.targets(target) for target in [*(rule.model for rule in auto.rules), auto.default]):
        config = config.model_copy(update={"routes": running.routes})  # they lead to models that are not here yet
        waiting.append("routes")
    return config, waiting


class Reloader:
    """Reloads `gateway` when asked to, once at a time. Used from the gateway's event loop."""

    def __init__(
        self,
        gateway: Gateway,
        read: Callable[[], Config],
        *,
        refusals: tuple[type[Exception], ...],
        report: Callable[[Outcome], None] = lambda outcome: None,
    ) -> None:
        """`refusals`: what `read` raises for a file that is wrong, with a message for people."""
        self._gateway = gateway
        self._read = read
        self._refusals: tuple[type[Exception], ...] = (StartRefusedError, *refusals)
        self._report = report
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Outcome]] = set()

    def request(self) -> None:
        """Begin a reload; several in a row are done one after the other, so that the last one sees the newest file."""
        task = asyncio.get_running_loop().create_task(self.reload(), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> Outcome:
        """Read and apply. A file that is wrong changes nothing. It is logged and reported, never raised."""
        async with self._turn:
            try:
                read = await asyncio.to_thread(self._read)
                config, waiting = merged(self._gateway.config, read)
                check_exposure(config.server)
            except self._refusals as exc:
                outcome = Outcome(False, str(exc).splitlines())
                logger.error("configuration not reloaded, nothing has changed: %s", "; ".join(outcome.notes))
            except Exception as exc:  # whatever it is, those who asked must be told
                outcome = Outcome(False, [f"unexpected {type(exc).__name__}, see the log"])
                logger.error("configuration not reloaded, nothing has changed: %s", describe(exc))
            else:
                self._gateway.reload(config)
                outcome = Outcome(True, waiting)
                logger.info("configuration reloaded")
                if waiting:
                    logger.warning("needs a restart to take effect: %s", ", ".join(waiting))
            self._report(outcome)
            return outcome
