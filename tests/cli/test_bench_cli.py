"""`twospeed bench quick`'s command line; what it measures is tested in tests/bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twospeed.bench import run
from twospeed.bench.results import Machine, Report

FAKE = """
version: 1
models:
  a: {backend: fake, aliases: [other]}
  b: {backend: fake}
  c: {backend: fake, preload: false}
"""


class Asked:
    """Stands in for the measuring; remembers what was asked."""

    def __init__(self, *errors: str) -> None:
        machine = Machine("cpu", [], 2, 2, "Linux", "x86_64", 1, 1, 0.0)
        self.report = Report(machine, {"twospeed": "1"}, "now", errors=list(errors))
        self.names: list[str] = []

    def __call__(self, config: Any, names: list[str], url: Any, key: Any, voice: run.Voice) -> Report:
        self.names, self.url, self.key = names, url, key
        voice.say("a line")
        voice.progress("something")
        return self.report


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models.yaml").write_text(FAKE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bench(monkeypatch: pytest.MonkeyPatch, asked: Asked, *words: str) -> int:
    from twospeed.__main__ import main

    monkeypatch.setattr(run, "quick", asked)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["twospeed", "bench", "quick", *words])
    with pytest.raises(SystemExit) as exit_:
        main()
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_what_is_loaded_at_the_start_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    assert bench(monkeypatch, asked) == 0
    assert asked.names == ["a", "b"]


def test_models_are_named_by_name_or_alias(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    assert bench(monkeypatch, asked, "--models", "c, other,a") == 0
    assert asked.names == ["c", "a"]


def test_the_report_goes_to_stdout_and_progress_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(monkeypatch, Asked()) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a line\n", "... something\n")


def test_the_json_file_holds_the_report_also_when_something_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked("fast: prefill: took longer than 120 s")
    assert bench(monkeypatch, asked, "--json", "out.json") == 1
    assert msgspec.json.decode((folder / "out.json").read_bytes(), type=Report) == asked.report


def test_the_key_comes_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSPEED_API_KEY", "0123456789abcdef")
    asked = Asked()
    assert bench(monkeypatch, asked, "--url", "http://example.test", "--models", "any") == 0
    assert (asked.names, asked.url, asked.key) == (["any"], "http://example.test", "0123456789abcdef")
