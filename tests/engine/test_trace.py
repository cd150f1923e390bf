"""What `serve --trace` writes: everything a replay needs, nothing that can be read, and never at the engine's cost."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from traced import TEXTS, Traced

from twospeed.engine import trace, tracefile
from twospeed.engine.recorder import Recorder, recording
from twospeed.engine.scheduler import Scheduler
from twospeed.engine.trace import Added, Header, Released, Stepped, TraceError
from twospeed.engine.tracefile import TraceFile
from twospeed.types import TIERS, Share

HEADER = trace.encode(Header(trace.FORMAT, "test"))


def tokens_in(traced: Traced) -> set[int]:
    """Every pseudonym of the trace."""
    added = {t for event in traced.of(Added) for t in [*(event.prompt or []), *event.prediction]}
    parts = [part for event in traced.of(Stepped) for part in event.parts]
    return added | {t for part in parts for t in [*part.draft, *(part.written or [])]}


def run(seed: int = 3) -> Traced:
    traced = Traced(seed)
    traced.random_run(60)
    return traced


# Privacy


def test_no_text_token_or_name_is_in_it() -> None:
    traced = Traced()
    for text in TEXTS:
        traced.submit(text * 2, chat=True, namespace="key of alice", prediction=text, max_tokens=80, n=2)
    traced.drain()
    found = b"".join(traced.lines)
    assert tokens_in(traced)
    for word in (b"secret", b"xylophone", b"alice", b"return", b"r1"):
        assert word not in found
    assert all(token > 2**20 for token in tokens_in(traced))  # the ids are below 264
    assert not re.search(rb"\[(\d{1,3},){4}", b"".join(line for line in traced.lines if b'"add"' in line))


def test_two_traces_of_the_same_run_share_no_pseudonym() -> None:
    first, second = run(), run()
    assert [type(e) for e in first.events] == [type(e) for e in second.events]
    assert tokens_in(first)
    assert not tokens_in(first) & tokens_in(second)
    spaces = [{event.namespace for event in traced.of(Added)} for traced in (first, second)]
    assert not spaces[0] & spaces[1]


def test_equal_tokens_are_equal_within_a_namespace_of_a_model_and_nowhere_else() -> None:
    traced = Traced()
    for model, namespace in (("fast", ""), ("fast", ""), ("fast", "bob"), ("smart", "")):
        traced.submit("abcabc", model=model, namespace=namespace, max_tokens=1)
    first, again, bob, smart = (event.prompt for event in traced.of(Added))
    assert first == again
    assert first[1:4] == first[4:7]
    assert not set(first) & set(bob)
    assert not set(first) & set(smart)


# What is recorded


def test_the_end_of_a_sequence_and_a_cancel_are_told_apart() -> None:
    traced = Traced()
    traced.submit("abc", max_tokens=3)
    gone = traced.submit("abc", max_tokens=100)
    for _ in range(6):
        traced.core.step()
    traced.core.cancel(gone)
    assert [(event.sequence, event.cancelled) for event in traced.of(Released)] == [(0, False), (1, True)]


def test_siblings_share_one_copy_of_the_prompt() -> None:
    traced = Traced()
    traced.submit("abcdefgh" * 8, n=3, max_tokens=2)
    assert [(event.leader, event.prompt is None) for event in traced.of(Added)] == [(None, False), (0, True), (0, True)]


def test_a_step_says_what_was_written_and_what_it_cost() -> None:
    traced = Traced()
    traced.core.share({tier: Share(speculation="off") for tier in TIERS})
    traced.submit("abc", max_tokens=3, tier="priority")
    traced.drain()
    steps = traced.of(Stepped)
    (prompt,) = (event.prompt for event in traced.of(Added))
    assert [step.parts[0].rows for step in steps] == [len(prompt), 1, 1]
    assert {token for step in steps for part in step.parts for token in part.written} <= set(prompt)
    assert [step.ms for step in steps] == pytest.approx([2 + len(prompt), 3, 3])
    assert {tuple(step.charged.items()) for step in steps} == {(("priority", 1.0),)}


def test_without_a_file_nothing_records() -> None:
    with recording(None) as scheduler:
        assert type(scheduler) is Scheduler


# The file


def test_it_is_for_its_owner_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    for _ in range(2):
        with recording(file) as scheduler:
            assert isinstance(scheduler, Recorder)
            scheduler.share({})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kinds = [json.loads(line)["event"] for line in file.read_bytes().splitlines()]
    assert kinds == ["header", "shares", "header", "shares"]


def test_a_line_cut_short_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(HEADER + b'{"event":"idle","at":1.0}\n{"event":"id')
    with recording(file) as scheduler:
        scheduler.plan(2.0)
    events = [event for _, event in trace.decode(file.read_bytes().splitlines(keepends=True))]
    assert [type(event).__name__ for event in events] == ["Header", "Idle", "Header", "Idle"]


@pytest.mark.parametrize("text", [b"models:\n  fast: {}\n", b'{"event":"other"}\n', b"\xff\xfe", b"x" * 9000])
def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "models.yaml"
    file.write_bytes(text)
    file.chmod(0o644)
    with pytest.raises(TraceError, match="not a trace"):
        TraceFile(file)
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (text, 0o644)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="regular"):
        TraceFile(tmp_path / "pipe")


def test_a_full_disk_ends_the_trace_with_one_line_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = TraceFile(tmp_path / "t.jsonl")
    monkeypatch.setattr(tracefile.os, "write", full)
    file.write(b"x\n")
    file.close()
    for _ in range(3):
        file.write(b"x\n")
    monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records] == [
        f"the trace {tmp_path / 't.jsonl'} stops here: No space left on device"
    ]
    assert (tmp_path / "t.jsonl").read_bytes() == b""


def test_a_disk_that_hangs_takes_no_more_memory_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracefile, "_MOST_BYTES", 1000)
    monkeypatch.setattr(tracefile, "_EVERY_S", 3600)
    file = TraceFile(tmp_path / "t.jsonl")
    for _ in range(20):
        file.write(b"x" * 100)
    file.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"the trace {tmp_path / 't.jsonl'} stops here: the disk does not keep up"
    ]


def test_an_engine_whose_file_cannot_be_made_runs_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), recording(tmp_path / "no" / "t.jsonl") as scheduler:
        assert type(scheduler) is Scheduler
    assert "no trace is written" in caplog.text
