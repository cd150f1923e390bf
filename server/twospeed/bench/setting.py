"""What both benchmarks share: where they run, and who hears of it."""

from __future__ import annotations

import importlib.metadata
import ipaddress
import platform
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from .. import __version__
from ..machine import look
from .client import Endpoint
from .results import Machine

_LIBRARIES = ("llama-cpp-python", "numpy", "uvicorn")


class Voice(NamedTuple):
    """Who hears what: `say` the report's lines as they come, `progress` what is being done."""

    say: Callable[[str], None]
    progress: Callable[[str], None]


def is_here(endpoint: Endpoint) -> bool:
    """Whether a server runs on this machine, so that the bare loop can be compared with it."""
    host = urlsplit(endpoint.url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def machine() -> Machine:
    m = look()
    return Machine(
        cpu=m.cpu,
        features=list(m.features),
        cores=m.cores,
        cpus=m.cpus,
        system=m.system,
        arch=m.arch,
        memory_total=m.memory_total,
        memory_available=m.memory_available,
        load=m.load,
    )


def versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"twospeed": __version__, "python": platform.python_version()} | found
