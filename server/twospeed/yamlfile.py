"""YAML text to plain data that remembers its lines, and back. It must not know what a configuration means.

Scalars follow YAML 1.2's core rules, as editors do: `on` and `12:30` are text, keys are always text. Tags are refused.
`${env.NAME}` and `${env.NAME:-default}` are replaced in values, never in keys; `$${` stands for `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml

MAX_NODES = 20_000  # aliases count each time they are used, so a few lines cannot grow into gigabytes
MAX_DEPTH = 32

Path = tuple[str | int, ...]

_HOLE = re.compile(r"\$\$\{|\$\{(?:env\.(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?", re.ASCII)
_CORE: list[tuple[re.Pattern[str], Callable[[str], object]]] = [
    (re.compile(r"~|null|Null|NULL|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]{1,400}"), int),
    (re.compile(r"0o[0-7]{1,400}"), lambda text: int(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]{1,400}"), lambda text: int(text, 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"), lambda text: float(text.replace(".", ""))),
]


class ConfigError(Exception):
    """What is wrong with a configuration, one line for each problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Document(NamedTuple):
    data: Any
    lines: dict[Path, int]  # where each key or list item stands, from 1


def dotted(path: Path) -> str:
    """`("server", "api_keys", 0, "name")` as `server.api_keys[0].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def located(file: str, line: int, path: Path, message: str) -> str:
    return ": ".join(part for part in (f"{file}:{line}", dotted(path), message) if part)


def core_scalar(text: str) -> object:
    """The value of a plain scalar: null, a boolean, a number or the text itself."""
    return next((build(text) for pattern, build in _CORE if pattern.fullmatch(text)), text)


class _Composer(yaml.SafeLoader):
    """PyYAML's nodes, without its YAML 1.1 guesses, tags and unbounded recursion."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # PyYAML's own name and kind
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags (!...) are not allowed", problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse(text: str, file: str, env: Mapping[str, str]) -> Document:
    """Read one YAML document. Raises ConfigError, with `file` as its name."""
    reader = _Reader(file, env)
    try:
        node = _Composer(text).get_single_node()
        data = None if node is None else reader.value(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([*reader.problems, located(file, line, (), what)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([located(file, line, (), f"character {error.character!r}: {error.reason}")]) from None
    except (ValueError, OverflowError) as error:  # PyYAML lets int() and chr() fail: %YAML 1.999..., "\UFFFFFFFF"
        raise ConfigError([located(file, 1, (), f"not valid YAML: {error}")]) from None
    if reader.problems:
        raise ConfigError(reader.problems)
    return Document(data, reader.lines)


class _Reader:
    """Nodes to data. Collects the problems that do not stop the reading."""

    def __init__(self, file: str, env: Mapping[str, str]) -> None:
        self.file = file
        self.env = env
        self.lines: dict[Path, int] = {}
        self.problems: list[str] = []
        self.nodes = 0

    def problem(self, node: yaml.Node, path: Path, message: str) -> None:
        self.problems.append(located(self.file, node.start_mark.line + 1, path, message))

    def value(self, node: yaml.Node, path: Path) -> object:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            kind = "nested too deeply" if len(path) > MAX_DEPTH else "too many values"
            raise yaml.MarkedYAMLError(problem=f"{kind} (aliases count too)", problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        for index, item in enumerate(node.value):
            self.lines[(*path, index)] = item.start_mark.line + 1
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        """Plain text without placeholders, or nothing but one, may be a number; with more around it, it is text."""
        text = self.interpolate(node, path)
        hole = _HOLE.search(node.value)
        plain = node.style is None and (hole is None or (hole["name"] is not None and hole[0] == node.value))
        return core_scalar(text) if plain else text

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.problem(key, path, "a key must be text")
                continue
            here = (*path, key.value)
            if key.value in result:
                self.problem(key, here, f"duplicate key; the first one is in line {self.lines[here]}")
                continue
            self.lines[here] = key.start_mark.line + 1
            result[key.value] = self.value(item, here)
        return result

    def interpolate(self, node: yaml.Node, path: Path) -> str:
        def fill(hole: re.Match[str]) -> str:
            if hole[0] == "$${":
                return "${"
            name, default = hole["name"], hole["default"]
            if name is None:
                self.problem(node, path, "write ${env.NAME} or ${env.NAME:-default}, or $${ for a plain ${")
                return ""
            value = self.env.get(name)
            if default is not None:
                return value or default  # as in a shell: `:-` stands in for an empty variable too
            if value is None:
                self.problem(node, path, f"the environment variable {name} is not set")
                return ""
            return value

        return _HOLE.sub(fill, node.value)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = "|" if "\n" in text else None if isinstance(core_scalar(text), str) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text.replace("${", "$${"), style=style)


_Dumper.add_representer(str, _represent_text)


def dump(data: object) -> str:
    """YAML text that `parse` reads back as `data`."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
