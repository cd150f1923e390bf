"""The OpenAPI document: endpoints read their bodies themselves, so their models are registered here.

The document is served at /openapi.json; there is no page that would load scripts from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


def operation(summary: str, body: type[BaseModel] | None, reply: type[msgspec.Struct] | None) -> dict[str, Any]:
    """Keyword arguments of a route: what it takes and gives, for the document only."""
    extra: dict[str, Any] = {}
    if body is not None:
        schema = {"$ref": _REF.format(body.__name__)}
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    responses: dict[int | str, dict[str, Any]] = {
        "4XX": {"description": "The client's mistake", "content": _content("Error")},
        "5XX": {"description": "Not the client's mistake", "content": _content("Error")},
    }
    if reply is not None:
        responses[200] = {"description": summary, "content": _content(reply.__name__)}
        if body is not None:
            responses[200]["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {"summary": summary, "openapi_extra": extra, "responses": responses}


def install(app: FastAPI, bodies: Sequence[type[BaseModel]], replies: Sequence[type[msgspec.Struct]]) -> None:
    """Make `app` give a document that holds the models which its operations refer to."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = _with_components(schema, bodies, replies)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _with_components(
    document: dict[str, Any], bodies: Sequence[type[BaseModel]], replies: Sequence[type[msgspec.Struct]]
) -> dict[str, Any]:
    for path in document["paths"].values():
        for entry in path.values():
            entry["responses"].pop("422", None)  # FastAPI's own validation is not in use
    _, pydantic_schema = models_json_schema(
        [(model, "validation") for model in bodies], ref_template=_REF.format("{model}")
    )
    _, struct_schemas = msgspec.json.schema_components(replies, ref_template=_REF.format("{name}"))
    schemas = {"Error": _ERROR} | pydantic_schema.get("$defs", {}) | struct_schemas
    document.setdefault("components", {})["schemas"] = schemas
    return document


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name)}}}
