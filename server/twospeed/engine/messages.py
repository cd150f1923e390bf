"""What gateway and engine process say to each other: msgpack through msgspec, over two zmq sockets.

To the engine: Load, Generate, Cancel, Tiers, Stop. From it: Loaded, LoadFailed, Failed and one Progress a step.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..types import Chunk, GenerateRequest, ModelInfo, ServiceTier, Share, StepStats


class DraftFile(msgspec.Struct, frozen=True):
    """The draft model `name`, a config.Model too; `path` as below."""

    name: str
    path: str | None
    model: dict[str, Any]


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load `model`, a config.Model as JSON-like data, under `name`. `path=None`: it needs no file. `draft`:
    what writes ahead for it."""

    name: str
    path: str | None
    model: dict[str, Any]
    draft: DraftFile | None = None


class Generate(msgspec.Struct, frozen=True, tag=True):
    request: GenerateRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    id: str


class Tiers(msgspec.Struct, frozen=True, tag=True):
    """How service tiers share the device from now on."""

    shares: dict[ServiceTier, Share]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process; running requests are dropped."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    name: str
    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    name: str
    reason: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Request `id` ends with an error; `code` is a key of errors.TABLE."""

    id: str
    code: str
    message: str
    param: str | None = None


class Out(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of request `id`."""

    id: str
    chunk: Chunk


class Progress(msgspec.Struct, frozen=True, tag=True):
    """One step was run."""

    stats: StepStats
    outs: list[Out]


ToEngine = Load | Generate | Cancel | Tiers | Stop
FromEngine = Loaded | LoadFailed | Failed | Progress

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
