"""How long a client is ready to wait for a seat: Cerebras' header `queue_threshold`, or the field of that name."""

from __future__ import annotations

from starlette.requests import Request

from ..errors import ApiError
from .fields import MAX_QUEUE_MS, GenerationFields

_NAME = "queue_threshold"


def patience(request: Request, body: GenerationFields) -> float | None:
    """In seconds; None: as long as the tier lets it. The header wins. Raises `invalid_value`."""
    written = request.headers.get(_NAME)
    if written is None:
        return None if body.queue_threshold is None else body.queue_threshold / 1000
    # Digits only, as floats may be written in ways (1_0, nan, 1e999) that no client means.
    text = written.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_QUEUE_MS):
        expected = f"it should be a number of milliseconds from 0 to {MAX_QUEUE_MS}"
        raise ApiError("invalid_value", f"Invalid value for the header '{_NAME}': {expected}.", param=_NAME)
    return int(text) / 1000
