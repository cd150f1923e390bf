"""`twospeed replay` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traced import Traced
from typer.testing import CliRunner, Result

from twospeed.cli import app


def replay(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    traced = Traced(5)
    traced.random_run(40)
    file = tmp_path_factory.mktemp("traces") / "t.jsonl"
    file.write_bytes(b"".join(traced.lines))
    return file


def test_it_says_that_the_plans_are_the_same_and_what_each_tier_got(recorded: Path) -> None:
    done = replay(recorded)
    assert done.exit_code == 0
    assert done.output.startswith("same plans\n")
    assert "first token p95, ms" in done.output
    assert ">" not in done.output


def test_json_has_the_report_and_what_if_only_where_it_was_asked_for(recorded: Path, tmp_path: Path) -> None:
    alone = json.loads(replay(recorded, "--json").output)
    assert (alone["same_plans"], alone["difference"], alone["what_if"]) == (True, None, None)
    config = tmp_path / "models.yaml"
    config.write_text("version: 1\nmodels: {fast: {backend: fake, slots: 1}}\n")
    for options in (["--slots", 1], ["--config", config], ["--speculation", "off"], ["--max-step-ms", 5]):
        both = json.loads(replay(recorded, "--json", *options).output)
        assert both["recorded"] == alone["recorded"]
        assert both["what_if"] is not None


def test_other_plans_are_named_and_the_exit_code_says_so(recorded: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(recorded.read_bytes().replace(b'"decode_rows":1,', b'"decode_rows":2,', 1))
    done = replay(other)
    assert done.exit_code == 1
    assert done.output.startswith("other plans from line ")
    assert "decode_rows was 2, and now is 1" in done.output


@pytest.mark.parametrize("content", [b"", b"hello", b"{}\n", b'{"event":"header","trace":7}\n', b"\0" * 10_000])
def test_a_foreign_file_is_one_line_and_exit_2(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "foreign"
    file.write_bytes(content)
    done = replay(file)
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert str(file) in done.output


def test_a_file_that_is_not_there_is_one_line_and_exit_2(tmp_path: Path) -> None:
    for file in (tmp_path / "none", tmp_path):
        done = replay(file)
        assert (done.exit_code, done.output.count("\n")) == (2, 1)
