from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from twospeed import __version__, doctor
from twospeed.configfile import json_schema
from twospeed.doctor import Check

FAKE = "version: 1\nmodels:\n  m: {backend: fake}\n"
SECRET = "0123456789abcdef-secret"  # noqa: S105


def twospeed(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    wide = os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | env
    command = [sys.executable, "-m", "twospeed", *arguments]
    return subprocess.run(command, cwd=cwd, env=wide, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.yaml").write_text(FAKE)
    return tmp_path


def test_config_prints_what_is_in_effect_without_secrets(folder: Path) -> None:
    with (folder / "models.yaml").open("a") as file:
        file.write("server: {api_keys: [{name: k, key: '${env.KEY}'}]}\n")
    done = twospeed("config", cwd=folder, KEY=SECRET)
    assert (done.returncode, done.stderr) == (0, "")
    shown = yaml.safe_load(done.stdout)
    assert shown["models"]["m"]["slots"] == 16
    assert len(shown["server"]["api_keys"][0]["sha256"]) == 64
    assert "key" not in shown["server"]["api_keys"][0]
    assert SECRET not in done.stdout


def test_config_check_says_ok(folder: Path) -> None:
    done = twospeed("config", "--check", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "models.yaml: ok (m)\n", "")


def test_a_wrong_file_gives_one_line_a_problem_and_no_traceback(folder: Path) -> None:
    file = folder / "other.yaml"
    file.write_text(FAKE + "sever: 1\nserver: {port: -1}\n")
    done = twospeed("config", "--check", "--config", str(file), cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{file}:4: sever: unknown key; did you mean 'server'?",
        f"{file}:5: server.port: Input should be greater than or equal to 0",
    ]


def test_config_schema_is_json_and_needs_no_file(tmp_path: Path) -> None:
    done = twospeed("config", "--schema", cwd=tmp_path)
    assert json.loads(done.stdout) == json_schema()


def test_help_names_the_commands_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, contextlib\n"
        "from twospeed.__main__ import main\n"
        "sys.argv = ['twospeed', '--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(sorted({'pydantic', 'fastapi', 'numpy', 'httpx', 'llama_cpp'} & sys.modules.keys()))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert " config " in done.stdout
    assert " doctor " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_printed(tmp_path: Path) -> None:
    assert twospeed("--version", cwd=tmp_path).stdout == f"twospeed {__version__}\n"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_exits_1_only_when_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: doctor.Status, code: int
) -> None:
    from twospeed.__main__ import main

    checks = [Check("one", "ok", "fine"), Check("another", status, "two\nlines", "do\nthis")]
    monkeypatch.setattr(doctor, "examine", lambda path: checks)
    for arguments in (["doctor"], ["doctor", "--json"]):
        monkeypatch.setattr(sys, "argv", ["twospeed", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == code
        shown = capsys.readouterr().out
        if "--json" in arguments:
            data = json.loads(shown)
            assert data["ok"] == (code == 0)
            assert [Check(**check) for check in data["checks"]] == checks
        else:
            lines = shown.splitlines()
            assert lines[1].endswith("another  two")
            assert [line.strip() for line in lines[2:]] == ["lines", "fix: do", "this"]
