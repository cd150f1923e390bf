"""GET /v1/models: OpenAI's model objects, with each model's state and size in extra fields."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ..config import Model
from ..routes import AUTO
from ..types import ModelState, ModelStatus
from .deps import Deps
from .openapi import operation
from .replies import json_response


class ModelObject(msgspec.Struct, frozen=True):
    """One model. Sizes are null until it is loaded; `progress` (0..1) only counts while it downloads."""

    id: str
    object: str
    created: int
    owned_by: str
    role: str
    aliases: list[str]
    ready: bool
    state: ModelState
    detail: str
    progress: float | None
    description: str | None = None
    context_length: int | None = None
    kv_tokens: int | None = None
    slots: int | None = None
    vocab_size: int | None = None
    parameters: int | None = None
    size_bytes: int | None = None
    chat_template: bool | None = None
    infill: bool | None = None
    system_fingerprint: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    object: str
    data: list[ModelObject]


def describe_model(status: ModelStatus, model: Model, created: int) -> ModelObject:
    """`status` and configuration of one model as its object."""
    info = status.info
    known = ModelObject(
        id=status.name,
        object="model",
        created=created,
        owned_by="twospeed",
        role=model.role or status.name,
        aliases=list(model.aliases),
        ready=status.state == "ready",
        state=status.state,
        detail=status.detail,
        progress=status.progress,
    )
    if info is None:
        return known
    return msgspec.structs.replace(
        known,
        description=info.description,
        context_length=info.context,
        kv_tokens=info.kv_tokens,
        slots=info.slots,
        vocab_size=info.vocab_size,
        parameters=info.parameters,
        size_bytes=info.size_bytes,
        chat_template=info.chat_template,
        infill=info.infill,
        system_fingerprint=info.fingerprint,
    )


def describe_auto(statuses: list[ModelStatus], created: int) -> ModelObject:
    """The object of `auto`, which stands for one of these models at each request."""
    best = min(statuses, key=lambda status: status.state != "ready")
    return ModelObject(
        id=AUTO,
        object="model",
        created=created,
        owned_by="twospeed",
        role=AUTO,
        aliases=[],
        ready=best.state == "ready",
        state=best.state,
        detail="chooses for each request: " + ", ".join(status.name for status in statuses),
        progress=None,
    )


def router(deps: Deps) -> APIRouter:
    """The endpoints."""
    routes = APIRouter()
    catalog = deps.gateway.catalog

    def auto() -> ModelObject:
        return describe_auto([catalog.status(name) for name in deps.gateway.router.models], deps.created)

    @routes.get("/v1/models", **operation("All models", None, ModelList))
    async def list_models(request: Request) -> Response:
        principal = deps.authenticate(request)
        models = [
            describe_model(status, catalog.model(status.name), deps.created)
            for status in catalog.statuses()
            if principal.may_use(status.name)
        ]
        models.append(auto())  # last: some clients take the first one
        return json_response(ModelList("list", models))

    # Names may have slashes, as in `owner/name`.
    @routes.get("/v1/models/{model:path}", **operation("One model, by its name or an alias", None, ModelObject))
    async def get_model(request: Request, model: str) -> Response:
        principal = deps.authenticate(request)
        if model == AUTO:
            return json_response(auto())
        name = catalog.resolve(model, principal)
        return json_response(describe_model(catalog.status(name), catalog.model(name), deps.created))

    return routes
