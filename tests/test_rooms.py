"""Rules about the code that no import contract can say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import twospeed
from twospeed.errors import TABLE, ApiError

PACKAGE = Path(twospeed.__file__).parent
DOCS = PACKAGE.parents[1] / "docs"


def code(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def test_llama_cpp_is_imported_in_one_file() -> None:
    importing = re.compile(r"^\s*(import|from) llama_cpp|import_module\(.llama_cpp|find_spec\(.llama_cpp", re.MULTILINE)
    found = [p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py") if importing.search(p.read_text("utf-8"))]
    assert found == ["engine/runner/llama.py"]


def test_every_error_code_in_the_code_is_in_the_table() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(code(path)):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                if name in ("ApiError", "RejectedError"):
                    used.add(str(node.args[0].value))
    assert used
    assert used <= TABLE.keys()


def test_every_error_code_is_documented() -> None:
    documented = (DOCS / "api.md").read_text("utf-8")
    assert [name for name in TABLE if f"`{name}`" not in documented] == []


def test_an_error_has_openais_envelope_and_says_when_to_come_back() -> None:
    error = ApiError("queue_full", "busy", param="model")
    assert error.body() == {
        "error": {"message": "busy", "type": "rate_limit_error", "param": "model", "code": "queue_full"}
    }
    assert (error.status, error.headers()) == (429, {"Retry-After": "5"})
    assert ApiError("invalid_json", "x").headers() == {}
