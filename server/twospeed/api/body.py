"""A request's body: read within limits of size and time, decoded, validated.

Everything a client can get wrong here is an ApiError that names the field. Knows no endpoint.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from ..errors import ApiError
from .disconnect import ClientGoneError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from starlette.requests import Request

BODY_TIMEOUT_S = 30.0

M = TypeVar("M", bound=BaseModel)


async def read(request: Request, model: type[M], *, limit: int) -> M:
    """The request's JSON body as a `model`. Raises ApiError, or ClientGoneError if the client leaves meanwhile."""
    _check_type(request)
    return parse(await _read_bytes(request, limit), model)


def parse(body: bytes, model: type[M]) -> M:
    """`body` as a `model`, strictly: no string passes for a number. Raises ApiError."""
    try:
        value = from_json(body)  # stops at 200 levels of nesting, refuses invalid UTF-8 and lone surrogates
    except ValueError as exc:
        raise ApiError("invalid_json", f"The body is not valid JSON: {exc}.") from None
    if not isinstance(value, dict):
        raise ApiError("invalid_value", "The body must be a JSON object.")
    if b"NaN" in body or b"Infinity" in body:
        _refuse_non_finite(value, ())
    try:
        return model.model_validate(value, strict=True)
    except ValidationError as exc:
        # No URLs, inputs or contexts: the answer must not repeat what may be a prompt.
        raise _as_api_error(exc.errors(include_url=False, include_input=False)[0]) from None


def param(path: Sequence[str | int]) -> str | None:
    """`("messages", 0, "content")` as `messages[0].content`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif not part.startswith("<"):  # the name of a union's branch, see one_of in fields.py
            text += f".{part}" if text else part
    return text or None


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type")
    # A web page may send text/plain, a form or (a Blob's) no type at all to any server without asking it first;
    # JSON it may not. So no page can make a visitor's browser use this server. Only browsers send Origin.
    if kind is None and "origin" not in request.headers:
        return
    if (kind or "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError("unsupported_media_type", "Send the body as `Content-Type: application/json`.")


async def _read_bytes(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                part = message.get("body", b"")
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise ApiError("request_timeout", f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None


def _too_large(limit: int) -> ApiError:
    return ApiError("request_too_large", f"The body is larger than {limit} bytes (server.max_body_bytes).")


def _refuse_non_finite(value: Any, path: tuple[str | int, ...]) -> None:
    """JSON has no NaN or Infinity, though parsers take them: say where it stands, even in a field we'd ignore."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ApiError("invalid_value", "NaN and Infinity are not valid JSON numbers.", param=param(path))
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_non_finite(item, (*path, index))


def _as_api_error(error: ErrorDetails) -> ApiError:
    where = param(error["loc"])
    if error["type"] == "missing":
        return ApiError("missing_required_parameter", f"Missing required parameter: '{where}'.", param=where)
    message = error["msg"].removeprefix("Value error, ")
    return ApiError("invalid_value", f"Invalid value for '{where}': {message}.", param=where)
