"""Every error a client can see is made here: ApiError, and the one table from code to status and type.

The envelope is OpenAI's: {"error": {"message", "type", "param", "code"}}.
https://platform.openai.com/docs/guides/error-codes
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Kind(NamedTuple):
    status: int
    type: str
    retry_after: int | None = None  # seconds a client should wait; None: trying again won't help


_INVALID = "invalid_request_error"

TABLE: dict[str, Kind] = {
    "invalid_request": Kind(400, _INVALID),  # not HTTP as we speak it
    "invalid_json": Kind(400, _INVALID),
    "invalid_value": Kind(400, _INVALID),
    "missing_required_parameter": Kind(400, _INVALID),
    "unsupported_parameter": Kind(400, _INVALID),
    "service_tier_not_allowed": Kind(400, _INVALID),
    "context_length_exceeded": Kind(400, _INVALID),
    "invalid_template": Kind(400, _INVALID),
    "invalid_host": Kind(400, _INVALID),
    "invalid_api_key": Kind(401, "authentication_error"),
    "model_not_found": Kind(404, _INVALID),
    "not_found": Kind(404, _INVALID),
    "method_not_allowed": Kind(405, _INVALID),
    "request_timeout": Kind(408, _INVALID),
    "request_too_large": Kind(413, _INVALID),
    "unsupported_media_type": Kind(415, _INVALID),
    "queue_full": Kind(429, "rate_limit_error", 5),
    "queue_threshold_exceeded": Kind(429, "rate_limit_error", 5),
    "rate_limit_exceeded": Kind(429, "rate_limit_error", 5),
    "resource_unavailable": Kind(429, "rate_limit_error", 5),
    "internal_error": Kind(500, "server_error"),
    "engine_error": Kind(500, "server_error"),
    "engine_died": Kind(503, "server_error", 2),
    "engine_failed": Kind(503, "server_error", 60),
    "model_not_ready": Kind(503, "server_error", 5),
    "model_failed": Kind(503, "server_error", 60),
    "queue_timeout": Kind(503, "server_error", 5),
    "shutting_down": Kind(503, "server_error", 10),
}


class ApiError(Exception):
    """An error for the client. `code` is a key of TABLE; `param` names the field at fault."""

    def __init__(self, code: str, message: str, *, param: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.kind = TABLE[code]
        self.retry_after = retry_after if retry_after is not None else self.kind.retry_after

    @property
    def status(self) -> int:
        return self.kind.status

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind.type, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
