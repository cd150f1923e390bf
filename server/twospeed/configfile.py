"""models.yaml on disk: where it is, reading it with errors that name the line, and printing what is in effect.

What the keys mean is config's job, how YAML is read is yamlfile's.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .config import Config
from .yamlfile import ConfigError, Document, dotted, dump, located, parse
from .yamlfile import Path as KeyPath

__all__ = ["ConfigError", "effective", "effective_text", "find_config", "json_schema", "load_config"]

FILE_NAME = "models.yaml"
MAX_BYTES = 2**20


def find_config(explicit: Path | None = None) -> Path:
    """The file to read: the one asked for, ./models.yaml, a checkout's, or the one that comes with the package."""
    if explicit is not None:
        return explicit
    package = Path(__file__).parent
    checkout = package.parents[1]
    candidates = [Path(FILE_NAME), package / FILE_NAME]
    if (checkout / "pyproject.toml").is_file():
        candidates.insert(1, checkout / FILE_NAME)
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise ConfigError([f"no {FILE_NAME} here, and none came with the package; name one with --config"])
    return found


def load_config(path: Path | str, *, env: Mapping[str, str] = os.environ) -> Config:
    """Read and check `path`. Raises ConfigError with a line for every problem."""
    file = str(path)
    document = parse(_read(file), file, env)
    _resolve_files(document.data, os.path.dirname(os.path.abspath(file)))
    try:
        return Config.model_validate(_with_defaults(document.data))
    except ValidationError as error:
        raise ConfigError(_explain(error, document, file)) from None


def _read(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"{file}: larger than {MAX_BYTES} bytes"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([located(file, raw.count(b"\n", 0, error.start) + 1, (), "not UTF-8 text")]) from None


def _models(data: object) -> dict[str, dict[str, Any]]:
    """The entries of `models:` that are mappings; what else stands there is for Config to refuse."""
    models = data.get("models") if isinstance(data, dict) else None
    return {k: v for k, v in models.items() if isinstance(v, dict)} if isinstance(models, dict) else {}


def _resolve_files(data: object, folder: str) -> None:
    """`file:` paths are relative to the folder of models.yaml, wherever the server is started."""

    def absolute(value: object) -> object:
        if not isinstance(value, str) or not value.startswith("file:") or value == "file:":
            return value
        return "file:" + os.path.normpath(os.path.join(folder, os.path.expanduser(value.removeprefix("file:"))))

    for model in _models(data).values():
        if "chat_template" in model:
            model["chat_template"] = absolute(model["chat_template"])
        if isinstance(model.get("sources"), list):
            model["sources"] = [absolute(source) for source in model["sources"]]


def _with_defaults(data: Any) -> Any:
    defaults = data.get("defaults") if isinstance(data, dict) else None
    if not isinstance(defaults, dict) or not isinstance(data.get("models"), dict):
        return data
    return data | {"models": data["models"] | {name: defaults | model for name, model in _models(data).items()}}


def _explain(error: ValidationError, document: Document, file: str) -> list[str]:
    """One line for each key at fault, in the order of the file."""
    found: dict[KeyPath, list[str]] = {}
    for entry in error.errors(include_url=False, include_input=False):
        path, message = _locate(entry["type"], entry["loc"], entry["msg"], document.lines)
        messages = found.setdefault(path, [])
        if message not in messages:
            messages.append(message)
    lines = []
    for path, messages in found.items():
        line = next((document.lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in document.lines), 1)
        # a union (`int | auto`) gives an error for each of its members
        text = " or ".join([messages[0], *(message.removeprefix("Input should be ") for message in messages[1:])])
        lines.append((line, located(file, line, path, text)))
    return [text for _, text in sorted(lines, key=lambda pair: pair[0])]


def _locate(kind: str, loc: KeyPath, message: str, lines: dict[KeyPath, int]) -> tuple[KeyPath, str]:
    """Pydantic's place and words as ours: its `loc` has names of union members in it, which are no keys."""
    path: KeyPath = ()
    for part in loc:
        step = _written((*path, part), lines)
        if step not in lines and not (kind == "missing" and step == loc):
            break
        path = step
    if kind == "value_error":  # from a validator of config.py, which names the key first
        message = message.removeprefix("Value error, ")
        named = [
            key for key in lines if key[: len(path)] == path and message.startswith(dotted(key[len(path) :]) + ": ")
        ]
        if named:
            key = max(named, key=len)
            return key, message.removeprefix(dotted(key[len(path) :]) + ": ")
        if head := re.match(r"([a-z0-9_]+): ", message):
            return _written((*path, head[1]), lines), message[head.end() :]
    return path, _wording(kind, path, message)


def _written(path: KeyPath, lines: dict[KeyPath, int]) -> KeyPath:
    """Where a model's key stands: under the model or, if it does not have it itself, under `defaults:`."""
    merged = len(path) == 3 and path[0] == "models" and path not in lines and ("defaults", path[2]) in lines
    return ("defaults", path[2]) if merged else path


def _wording(kind: str, path: KeyPath, message: str) -> str:
    match kind:
        case "extra_forbidden":
            near = difflib.get_close_matches(str(path[-1]), _known_keys(path[:-1]), n=1)
            return f"unknown key; did you mean {near[0]!r}?" if near else "unknown key"
        case "missing":
            return "missing"
        case "model_type" | "dict_type":
            return "Input should be a mapping"
        case "string_type":
            return f"{message} (quotes make it one)"
    return message


def _known_keys(path: KeyPath) -> list[str]:
    """The keys that may stand in the mapping at `path`."""
    schema = Config.model_json_schema()
    node: dict[str, Any] = schema
    for part in path:
        named: dict[str, Any] = node.get("properties", {})
        patterns: dict[str, Any] = node.get("patternProperties", {})
        inner: list[Any] = [node.get("items"), named.get(str(part)), *patterns.values(), {}]
        node = next(found for found in inner if found is not None)
        node = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
    return list(node.get("properties", {}))


def effective(config: Config) -> dict[str, Any]:
    """The whole configuration, defaults filled in, as models.yaml would hold it.

    A key given in the clear is shown by its sha256, which admits the same client, so that no secret is printed.
    """
    data = config.model_dump(mode="json", by_alias=True)
    for entry in data["server"]["api_keys"]:
        key = entry.pop("key")
        if key is not None:
            entry["sha256"] = hashlib.sha256(key.encode()).hexdigest()
    return data


def effective_text(config: Config) -> str:
    return dump(effective(config))


def json_schema() -> dict[str, Any]:
    """JSON Schema of models.yaml, for editors. Where a value has a form to keep, a placeholder may stand instead."""
    schema = Config.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for owner in (schema, *definitions.values()):
        owner.pop("title")
        for name, field in owner["properties"].items():
            field.pop("title", None)
            owner["properties"][name] = _or_placeholder(field)
    schema["properties"]["models"]["additionalProperties"] = False  # a name that breaks the pattern is an error
    definitions["Placeholder"] = {"type": "string", "pattern": r"\$\{env\."}
    return schema


def _or_placeholder(field: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in field or field.get("type") == "object":
        return field
    if field.get("type") == "array":
        return field | {"items": _or_placeholder(field["items"])}
    notes = {key: field[key] for key in ("description", "default") if key in field}
    form = {key: value for key, value in field.items() if key not in notes}
    if form == {"type": "string"}:
        return field
    return notes | {"anyOf": [*form.get("anyOf", [form]), {"$ref": "#/$defs/Placeholder"}]}
