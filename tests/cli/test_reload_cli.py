"""`twospeed reload` finds its server and nobody else; what really happens then is tests/test_app.py's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from twospeed.cli import app
from twospeed.cli.runfile import Record, RunFile, running


@pytest.fixture
def other() -> Iterator[psutil.Process]:
    """A process that a SIGHUP would end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        found = psutil.Process(process.pid)
        while not found.cmdline():
            pass
        yield found
        process.kill()


def record_of(process: psutil.Process, **changes: Any) -> Record:
    record = Record(
        pid=process.pid, started=process.create_time(), command=process.cmdline(), port=8000, config="/models.yaml"
    )
    return msgspec.structs.replace(record, **changes)


def keep(root: Path, record: Record) -> None:
    folder = root / "run"
    folder.mkdir(exist_ok=True)
    (folder / f"{record.port}.json").write_bytes(msgspec.json.encode(record))


def reload(root: Path, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["reload", *arguments], env={"TWOSPEED_HOME": str(root)})
    return done.exit_code, done.output


def test_a_record_names_this_process_and_goes_with_it(tmp_path: Path) -> None:
    with RunFile(tmp_path, port=8000, config=tmp_path / "models.yaml") as file:
        assert running(tmp_path) == []
        file.write()
        ((record, process),) = running(tmp_path)
        assert (record.port, process.pid, record.config) == (8000, os.getpid(), str(tmp_path / "models.yaml"))
        file.reloaded(applied=False, notes=["bad"])
        ((record, _),) = running(tmp_path)
        assert (record.reloads, record.applied, record.notes) == (1, False, ["bad"])
    assert list((tmp_path / "run").iterdir()) == []


def test_another_servers_record_is_left_alone(tmp_path: Path, other: psutil.Process) -> None:
    with RunFile(tmp_path, port=8000, config=tmp_path) as file:
        file.write()
        keep(tmp_path, record_of(other))
    assert [record.pid for record, _ in running(tmp_path)] == [other.pid]


@pytest.mark.parametrize(
    "changes", [{"started": 1.0}, {"command": ["twospeed", "serve"]}, {"pid": 2**22 + 1}, {"pid": 1}]
)
def test_a_process_that_is_not_the_one_recorded_gets_no_signal(
    tmp_path: Path, other: psutil.Process, changes: dict[str, Any]
) -> None:
    keep(tmp_path, record_of(other, **changes))
    code, says = reload(tmp_path, "--port", "8000")
    assert (code, says) == (1, "No server runs here on port 8000.\n")
    assert other.is_running()
    assert other.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"pid": "x"}'])
def test_a_broken_record_counts_for_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "8000.json").write_bytes(text)
    assert reload(tmp_path) == (1, "No server runs here; start one with `twospeed serve`.\n")


def test_of_several_servers_one_must_be_chosen(tmp_path: Path, other: psutil.Process) -> None:
    for port in (8000, 8001):
        keep(tmp_path, record_of(other, port=port))
    assert reload(tmp_path) == (2, "Several servers run: choose one with --port (8000, 8001).\n")


def test_a_server_that_ends_instead_of_reloading_is_told(tmp_path: Path, other: psutil.Process) -> None:
    keep(tmp_path, record_of(other))  # the very process, but no server: the signal ends it
    code, says = reload(tmp_path)
    assert (code, says) == (1, "The server did not say that it has reloaded; see its log.\n")


def test_a_folder_that_cannot_be_written_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "file"
    root.touch()
    with RunFile(root, port=1, config=tmp_path) as file:
        file.write()
    assert "can't be written" in caplog.text
