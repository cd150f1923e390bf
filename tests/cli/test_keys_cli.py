"""`twospeed keys new`: a key that is shown once, and the YAML that lets it in."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from twospeed.cli import app
from twospeed.configfile import load_config
from twospeed.gateway.auth import Keys, Principal

MODELS = "version: 1\nmodels: {fast: {backend: fake, aliases: [quick]}, smart: {backend: fake}}\n"


def new(*arguments: str) -> tuple[str, str]:
    """The key and the YAML."""
    done = CliRunner().invoke(app, ["keys", "new", *arguments])
    assert done.exit_code == 0, done.output
    (key,) = re.findall(r"ts-\S+", done.stderr)
    assert key not in done.stdout
    return key, done.stdout


def let_in(tmp_path: Path, key: str, block: str) -> Principal:
    file = tmp_path / "models.yaml"
    file.write_text(MODELS + block)
    return Keys(load_config(file)).check(f"Bearer {key}", None)


def test_a_key_is_long_and_never_the_same(tmp_path: Path) -> None:
    keys = {new("laptop")[0] for _ in range(5)}
    assert len(keys) == 5
    assert all(len(base64.urlsafe_b64decode(key.removeprefix("ts-"))) * 8 >= 128 for key in keys)


def test_what_is_printed_lets_the_key_in(tmp_path: Path) -> None:
    key, block = new("laptop")
    principal = let_in(tmp_path, key, block)
    assert (principal.name, principal.tiers) == ("laptop", {"priority", "default", "flex"})


def test_what_is_asked_for_is_what_it_gets(tmp_path: Path) -> None:
    key, block = new("ci", "--tiers", "ultrafast, flex", "--models", "quick", "--default-tier", "flex")
    principal = let_in(tmp_path, key, block)
    assert (principal.tiers, principal.default_tier, principal.models) == ({"ultrafast", "flex"}, "flex", {"fast"})


def test_without_default_among_its_tiers_the_first_one_is_what_it_gets(tmp_path: Path) -> None:
    key, block = new("ci", "--tiers", "ultrafast,flex")
    assert let_in(tmp_path, key, block).default_tier == "ultrafast"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a b"], "NAME: "),
        (["a", "--tiers", "gold"], "--tiers: "),
        (["a", "--tiers", ""], "--default-tier: "),
        (["a", "--default-tier", "gold"], "--default-tier: "),
        (["a", "--tiers", "flex", "--default-tier", "default"], "--default-tier: 'default' is not among"),
        (["a", "--models", "auto model"], "--models: "),
    ],
)
def test_what_models_yaml_would_refuse_is_refused_here_and_no_key_made(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["keys", "new", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(says)
    assert "ts-" not in done.output
