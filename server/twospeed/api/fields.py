"""The parts of a request body that chat and plain completions share, as pydantic models.

Fields that clients send and that change nothing here (`user`, `store`, `safety_identifier`, `reasoning_effort`,
`verbosity`, `parallel_tool_calls`, ...) are not listed: like any unknown field they are taken and ignored. What
would change the output but isn't there yet is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue, StringConstraints, Tag

from ..errors import ApiError
from ..gateway.calls import Wanted
from ..gateway.route import METADATA_KEY
from ..types import Speculation

MAX_N = 16
MAX_TOKEN_ID = 2**31 - 1
_MAX_TOKENS = 2**31 - 1
_SEED = 2**63
MAX_QUEUE_MS = 86_400_000


class WireModel(BaseModel):
    """Strict about what it knows, silent about what it doesn't."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, protected_namespaces=())


def branch(name: str) -> Tag:
    """A branch of a union; `body.param` drops the angle brackets' name, so it never shows in an error."""
    return Tag(f"<{name}>")


def by(kind: Callable[[Any], str | None], expected: str) -> Discriminator:
    """Chooses a union's branch by looking at the value; None is an error that says what was `expected`."""

    def choose(value: Any) -> str | None:
        name = kind(value)
        return None if name is None else f"<{name}>"

    return Discriminator(choose, custom_error_type="wrong_type", custom_error_message=f"it should be {expected}")


def text_or_list(value: Any) -> str | None:
    """For `by`: `text` for a string, `list` for a list."""
    return "text" if isinstance(value, str) else "list" if isinstance(value, list) else None


StopText = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Stop = Annotated[
    Annotated[StopText, branch("text")] | Annotated[list[StopText], Field(max_length=4), branch("list")],
    by(text_or_list, "a string or a list of up to 4 strings"),
]


def _token_ids(bias: dict[str, float]) -> dict[str, float]:
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_TOKEN_ID):
            raise ValueError("its keys must be token ids")
    return bias


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024), AfterValidator(_token_ids)
]
PositiveTokens = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=0.01, le=10)]


def _route_is_text(metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not isinstance(metadata.get(METADATA_KEY, ""), str):
        raise ValueError(f"its {METADATA_KEY!r} should be a string")
    return metadata


Metadata = Annotated[dict[str, JsonValue], AfterValidator(_route_is_text)]


class PredictionPart(WireModel):
    type: Literal["text"]
    text: str


class Prediction(WireModel):
    """Text that the client expects in the output, such as the file that it wants edited."""

    type: Literal["content"]
    content: Annotated[
        Annotated[str, branch("text")] | Annotated[list[PredictionPart], branch("list")],
        by(text_or_list, "a string or a list of text parts"),
    ]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(WireModel):
    include_usage: bool | None = Field(None, description="send one more chunk, with usage and no choices")


class GenerationFields(WireModel):
    """What every generating endpoint takes."""

    model: str = Field(min_length=1, max_length=256, description="a model of the configuration, an alias, or auto")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    stop: Stop | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=-_SEED, lt=_SEED)] | None = None
    service_tier: Literal["auto", "default", "flex", "priority", "fast", "scale", "ultrafast"] | None = Field(
        None, description="the response says which one was used; fast and scale mean priority; auto: the key's default"
    )
    queue_threshold: Annotated[float, Field(ge=0, le=MAX_QUEUE_MS)] | None = Field(
        None,
        description="milliseconds this may wait for a seat; if it would take longer it is refused at once, with 429",
    )
    metadata: Metadata | None = Field(None, description=f"`{METADATA_KEY}` in it is a first choice for model auto")
    prediction: Prediction | None = Field(None, description="text expected in the output, which makes that part faster")
    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_ID)] | None = Field(None, description="0 or -1: off")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="0: off")
    repetition_penalty: Penalty | None = Field(None, description="1: off")
    repeat_penalty: Penalty | None = Field(None, description="llama.cpp's name for repetition_penalty")
    speculation: Speculation | None = Field(
        None, description="drafts: off, auto (where all streams gain) or eager (where this one does); null: the tier's"
    )
    ignore_eos: bool | None = Field(None, description="go on to max_tokens; for benchmarks")
    cache_prompt: bool | None = Field(
        None, description="false: compute the whole prompt again, so that a greedy answer is the same to the last bit"
    )

    @property
    def stops(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def predicted(self) -> str:
        """The text of `prediction`."""
        return "" if self.prediction is None else self.prediction.text

    def wanted(self) -> Wanted:
        """The sampling this asks for."""
        penalty = self.repetition_penalty if self.repetition_penalty is not None else self.repeat_penalty
        return Wanted(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(self.top_k, 0),
            min_p=self.min_p,
            repetition_penalty=penalty,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            logit_bias={int(token): bias for token, bias in (self.logit_bias or {}).items()},
            seed=self.seed,
            ignore_eos=bool(self.ignore_eos),
        )


def refuse(request: BaseModel, harmless: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raises `unsupported_parameter` for a field that is set to anything but null or what is harmless."""
    for name, is_harmless in harmless.items():
        value = getattr(request, name)
        if value is not None and not is_harmless(value):
            raise ApiError("unsupported_parameter", f"'{name}' with this value is not supported yet.", param=name)
