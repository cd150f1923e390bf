"""Plain responses: JSON bodies, and errors in OpenAI's envelope."""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ApiError
from ..observe.logs import describe
from .disconnect import ClientGoneError

logger = logging.getLogger(__name__)

CLIENT_GONE = 499  # nginx's number; nobody receives it, metrics count it


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value`, structs included, as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: ApiError) -> Response:
    """`error` as its client sees it."""
    headers = error.headers()
    if error.code == "request_timeout":
        headers["Connection"] = "close"  # the rest of the body may still come
    return json_response(error.body(), status=error.status, headers=headers)


def as_api_error(exc: Exception, request_id: str) -> ApiError:
    """`exc` itself, or what a client is told of one that nobody expected, which is logged."""
    if isinstance(exc, ApiError):
        return exc
    logger.error("request %s: unexpected %s", request_id, describe(exc))
    return ApiError("internal_error", f"Something went wrong here. Request id: {request_id}.")


async def on_api_error(request: Request, exc: Exception) -> Response:
    """Exception handler for ApiError."""
    if not isinstance(exc, ApiError):
        raise exc
    return error_response(exc)


async def on_client_gone(request: Request, exc: Exception) -> Response:
    """Exception handler for ClientGoneError."""
    if not isinstance(exc, ClientGoneError):
        raise exc
    return Response(status_code=CLIENT_GONE)


async def on_http_error(request: Request, exc: Exception) -> Response:
    """Exception handler for what the router refuses: unknown paths and methods."""
    if not isinstance(exc, HTTPException):
        raise exc
    if exc.status_code == 405:
        error = ApiError("method_not_allowed", f"{request.method} is not allowed here.")
    elif exc.status_code == 404:
        error = ApiError("not_found", "There is nothing at this path.")
    else:
        raise exc
    response = error_response(error)
    response.headers.update(exc.headers or {})
    return response
