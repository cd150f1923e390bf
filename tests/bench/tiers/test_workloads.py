from __future__ import annotations

import pytest

from twospeed.bench.client import BenchError, Endpoint, RefusedError
from twospeed.bench.tiers import code_text, texts
from twospeed.bench.tiers.dialect import Dialect
from twospeed.bench.tiers.run import chosen
from twospeed.bench.tiers.workloads import WORKLOADS, background_text, opening


def test_a_task_begins_with_its_mark() -> None:
    for workload in WORKLOADS.values():
        for task in workload.tasks(0, "mark"):
            assert opening(task)[0]["content"].startswith("[mark")


def test_one_round_is_the_same_for_both_tiers_and_other_rounds_differ() -> None:
    for workload in WORKLOADS.values():
        assert workload.tasks(1, "mark") == workload.tasks(1, "mark")
        if workload.name != "agent":
            assert workload.tasks(0, "mark")[0].turns != workload.tasks(1, "mark")[0].turns


def test_both_code_edits_ask_the_same_and_only_one_predicts() -> None:
    [plain], [predicted] = (WORKLOADS[name].tasks(2, "m") for name in ("code-edit", "code-edit-predicted"))
    assert plain.turns == predicted.turns
    assert (plain.prediction, predicted.prediction) == (None, code_text.FILE)
    assert code_text.FILE in plain.turns[0]
    compile(code_text.FILE, "file", "exec")


def test_only_the_agent_goes_on_and_keeps_what_was_said() -> None:
    kept = [w.name for w in WORKLOADS.values() for task in w.tasks(0, "m")[:1] if task.keeps_prefix]
    assert kept == ["agent"]
    assert len(texts.OBSERVATIONS) == 7


def test_the_background_asks_for_both_kinds() -> None:
    assert len({background_text(number) for number in range(16)}) == 16


def test_unknown_workloads_are_named() -> None:
    assert [w.name for w in chosen(["json", "chat"])] == ["json", "chat"]
    with pytest.raises(BenchError, match="'chta'; there are: chat, code-edit"):
        chosen(["chta"])


def dialect(own: bool) -> tuple[Dialect, list[str]]:
    notes: list[str] = []
    return Dialect(Endpoint("http://x"), "m", own, notes.append), notes


def test_fields_of_our_own_go_to_our_own_server() -> None:
    body = dialect(True)[0].body([], "ultrafast", 8, fixed=True)
    assert (body["ignore_eos"], body["cache_prompt"], body["service_tier"]) == (True, False, "ultrafast")
    assert dialect(False)[0].body([], "ultrafast", 8, fixed=True).keys() == {
        "model",
        "messages",
        "max_tokens",
        "service_tier",
    }


def test_what_another_server_refuses_is_left_out_and_said() -> None:
    talk, notes = dialect(False)
    body = talk.body([], "ultrafast", 8, prediction="text")
    assert not talk.learn(RefusedError(429, "service_tier", 0.0), body)
    assert talk.learn(RefusedError(400, "Unknown field: prediction", 0.0), body)
    assert talk.learn(RefusedError(422, "no", 0.0), talk.fit(body))
    assert talk.fit(body).keys() == {"model", "messages", "max_tokens"}
    assert not talk.learn(RefusedError(400, "no", 0.0), talk.fit(body))
    assert [note.split(",")[0] for note in notes] == [
        "the server refuses `prediction`",
        "the server refuses `service_tier`",
    ]
    assert talk.learn(RefusedError(400, "late", 0.0), body)  # sent before it was learned


def test_our_own_server_refuses_for_good_reason() -> None:
    talk, notes = dialect(True)
    assert not talk.learn(RefusedError(400, "service_tier", 0.0), talk.body([], "ultrafast", 8))
    assert notes == []
