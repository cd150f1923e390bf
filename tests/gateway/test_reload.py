"""What of a changed models.yaml a running server takes, and what it says of the rest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from twospeed.config import Config
from twospeed.errors import ApiError
from twospeed.gateway.catalog import Catalog
from twospeed.gateway.gateway import Gateway
from twospeed.gateway.reload import Outcome, Reloader, merged
from twospeed.observe.metrics import Metrics

KEY = {"name": "k", "key": "ts-0123456789abcdef"}


class WrongFileError(Exception):
    pass


class Engine:
    def __init__(self) -> None:
        self.shares: list[Any] = []

    def share(self, shares: Any) -> None:
        self.shares.append(shares)

    def on_step(self, listener: object) -> None:
        pass

    def status(self, model: str) -> None:
        return None


def configured(models: dict[str, Any] | None = None, server: dict[str, Any] | None = None, **rest: Any) -> Config:
    return Config.model_validate(
        {"version": 1, "models": models or {"fast": {"backend": "fake"}}, "server": server or {}} | rest
    )


def a_gateway(config: Config) -> tuple[Gateway, Engine]:
    engine: Any = Engine()
    return Gateway(config, engine, Catalog(config, engine, files=None), Metrics()), engine  # type: ignore[arg-type]


def test_what_can_change_changes_and_what_cannot_is_named() -> None:
    running = configured({"fast": {"backend": "fake"}, "old": {"backend": "fake"}}, {"port": 1, "max_queue": 1})
    read = configured(
        {"fast": {"backend": "fake", "slots": 3}, "new": {"backend": "fake"}},
        {"port": 2, "host": "localhost", "template_timeout_s": 9, "max_queue": 7, "api_keys": [KEY]},
        preview={"ultrafast": ["k"]},
        service_tiers={"flex": {"share": 0.08}},
    )
    config, waiting = merged(running, read)
    assert waiting == [
        "models.fast",
        "models.old",
        "models.new",
        "server.host",
        "server.port",
        "server.template_timeout_s",
    ]
    assert config.models == running.models
    assert (config.server.host, config.server.port, config.server.max_queue) == ("127.0.0.1", 1, 7)
    assert (config.preview, config.service_tiers) == (read.preview, read.service_tiers)
    assert config.server.api_keys == read.server.api_keys


def test_the_same_file_needs_no_restart() -> None:
    assert merged(configured(), configured()) == (configured(), [])


def test_a_reload_is_in_effect_everywhere_at_once() -> None:
    gateway, engine = a_gateway(configured(server={"api_keys": [KEY]}))
    gateway.start()
    with gateway.admission.permit("fast", "flex", 1):
        gateway.reload(
            configured(
                server={"allowed_hosts": ["box"], "api_keys": [KEY | {"name": "other", "models": ["fast"]}]},
                preview={"ultrafast": "all"},
                service_tiers={"flex": {"share": 0.08, "seats": 2}},
            )
        )
        room = gateway.admission.room("fast", "flex")
        assert (room.seats, room.held) == (2, 1)
    principal = gateway.keys.check(None, KEY["key"])
    assert (principal.name, gateway.tier("ultrafast", principal)) == ("other", "ultrafast")
    assert [shares["flex"].share for shares in engine.shares] == [0.02, 0.08]
    gateway.hosts.check("box")
    assert gateway.admission.held("fast") == 0


def test_a_key_for_a_model_that_waits_for_a_restart_finds_none() -> None:
    gateway, _ = a_gateway(configured())
    read = configured({"new": {"backend": "fake"}}, {"api_keys": [KEY | {"models": ["new"]}]})
    gateway.reload(merged(gateway.config, read)[0])
    principal = gateway.keys.check(None, KEY["key"])
    with pytest.raises(ApiError) as caught:
        gateway.catalog.resolve("fast", principal)
    assert caught.value.code == "model_not_found"


def reloaded(gateway: Gateway, *files: Config | Exception) -> list[Outcome]:
    """What comes of asking for a reload once for each of `files`, all at once."""
    outcomes: list[Outcome] = []
    left = list(files)

    def read() -> Config:
        file = left.pop(0)
        if isinstance(file, Exception):
            raise file
        return file

    async def run() -> None:
        done = asyncio.Event()

        def report(outcome: Outcome) -> None:
            outcomes.append(outcome)
            if len(outcomes) == len(files):
                done.set()

        reloader = Reloader(gateway, read, refusals=(WrongFileError,), report=report)
        for _ in files:
            reloader.request()
        await asyncio.wait_for(done.wait(), 5)

    asyncio.run(run())
    return outcomes


def test_a_wrong_file_changes_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gateway, engine = a_gateway(configured())
    before = gateway.config
    wrong = WrongFileError("models.yaml:3: port: bad\nmodels.yaml:4: prot: unknown key")
    assert reloaded(gateway, wrong) == [Outcome(False, str(wrong).splitlines())]
    assert gateway.config is before
    assert engine.shares == []
    assert "nothing has changed: models.yaml:3: port: bad; models.yaml:4" in caplog.text


def test_what_nobody_expected_is_told_without_its_message(caplog: pytest.LogCaptureFixture) -> None:
    gateway, _ = a_gateway(configured())
    (outcome,) = reloaded(gateway, ZeroDivisionError("a secret"))
    assert outcome == Outcome(False, ["unexpected ZeroDivisionError, see the log"])
    assert "a secret" not in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_reload_cannot_open_an_exposed_server_to_everybody(caplog: pytest.LogCaptureFixture) -> None:
    gateway, _ = a_gateway(configured(server={"host": "10.0.0.1", "api_keys": [KEY]}))
    (outcome,) = reloaded(gateway, configured())
    assert not outcome.applied
    assert gateway.config.server.api_keys
    assert "api_keys" in caplog.text


def test_reloads_happen_one_after_the_other_and_the_last_counts(caplog: pytest.LogCaptureFixture) -> None:
    gateway, engine = a_gateway(configured())
    slow = [configured(service_tiers={"flex": {"share": share}}) for share in (0.03, 0.05)]
    outcomes = reloaded(gateway, slow[0], WrongFileError("bad"), slow[1], configured(server={"port": 9}))
    assert [outcome.applied for outcome in outcomes] == [True, False, True, True]
    assert [shares["flex"].share for shares in engine.shares] == [0.03, 0.05, 0.02]
    assert outcomes[-1].notes == ["server.port"]
    assert "needs a restart to take effect: server.port" in caplog.text
