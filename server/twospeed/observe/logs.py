"""Where log lines go and how they look. Knows nothing of requests.

What must never be logged, here or anywhere: prompts, outputs, keys, headers. So an unexpected exception is
logged by its type and the places in the code, without its message, which may quote a client's data.
"""

from __future__ import annotations

import logging
import traceback


def setup_logging(*, verbose: bool = False) -> None:
    """Send log lines to stderr, with time, level and logger."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("twospeed").setLevel(logging.DEBUG if verbose else logging.INFO)


def describe(exc: BaseException) -> str:
    """The exception's type and its traceback without source lines' values or the message."""
    frames = "".join(traceback.format_tb(exc.__traceback__))
    return f"{type(exc).__name__} (message withheld: it may hold a client's data)\n{frames}".rstrip()
