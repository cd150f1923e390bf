"""`twospeed pull`, `list`, `rm` and `verify` as a user runs them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OWN, GONE = b"own file", b"wheel"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.gguf").write_bytes(OWN)
    (tmp_path / "models.yaml").write_text(
        f"""
version: 1
models:
  fast:
    sources: [file:none.gguf, file:own.gguf]
    sha256: {hashlib.sha256(OWN).hexdigest()}
    aliases: [gpt-small]
  smart:
    role: thinker
    sources: [file:none.gguf]
    preload: false
  stand-in:
    backend: fake
"""
    )
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TWOSPEED_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "twospeed", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_pull_list_verify_rm(folder: Path) -> None:
    pulled = run(folder, "pull")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout == f"fast: ok, 8 bytes, {folder / 'own.gguf'}\n"
    assert "none.gguf: No such file or directory; trying the next source" in pulled.stderr

    listed = run(folder, "list").stdout
    fast, smart = (
        next(line.split() for line in listed.splitlines() if line.split()[:1] == [n]) for n in ("fast", "smart")
    )
    assert fast[:3] == ["fast", "fast", "present"]
    assert fast[-1] == str(folder / "own.gguf")
    assert smart == ["smart", "thinker", "absent"]
    entries = json.loads(run(folder, "list", "--json").stdout)
    assert [(e["name"], e["state"], e["size"]) for e in entries[:2]] == [("fast", "present", 8), ("smart", "absent", 0)]

    assert run(folder, "verify").stdout == pulled.stdout
    (folder / "own.gguf").write_bytes(b"changed!")
    verified = run(folder, "verify", "gpt-small")
    assert verified.returncode == 1
    assert "fast: wrong checksum: sha256 is " in verified.stderr

    removed = run(folder, "rm", "fast", "smart")
    assert removed.returncode == 1
    assert removed.stdout == "smart: nothing here to remove\n"
    assert removed.stderr == f"fast: {folder / 'own.gguf'} is your own file and stays\n"
    assert (folder / "own.gguf").exists()


def test_a_model_that_cannot_be_had_is_one_line_and_does_not_stop_the_others(folder: Path) -> None:
    pulled = run(folder, "pull", "smart", "fast")
    assert pulled.returncode == 1
    assert f"smart: file:{folder / 'none.gguf'}: No such file or directory\n" in pulled.stderr
    assert "Traceback" not in pulled.stderr
    assert pulled.stdout.startswith("fast: ok")


def test_an_unknown_name_lists_the_known_ones(folder: Path) -> None:
    for command in ("pull", "rm", "verify"):
        done = run(folder, command, "fats")
        assert done.returncode == 2
        assert done.stderr == "no model is named 'fats'; there are: fast, smart, stand-in\n"


def test_pull_fetches_the_draft_too(folder: Path) -> None:
    file = folder / "models.yaml"
    file.write_text(
        file.read_text() + "  large:\n    sources: [file:own.gguf]\n    draft: {model: gpt-small}\n    preload: false\n"
    )
    pulled = run(folder, "pull", "large")
    assert pulled.returncode == 0, pulled.stderr
    assert [line.partition(":")[0] for line in pulled.stdout.splitlines()] == ["large", "fast"]
