"""Measuring step times: bounded steps, complete curves, an empty runner afterwards, a file for the next start."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from twospeed.config import Model
from twospeed.engine import calibrate
from twospeed.engine.cost import Curves, StepCost
from twospeed.engine.runner.base import Row, RunnerError
from twospeed.engine.runner.fake import FakeRunner


def runner() -> FakeRunner:
    return FakeRunner(None, Model(backend="fake", context=256), max_seqs=2)


class CannotBeCut(FakeRunner):
    """As recurrent models: a sequence can be emptied, and no more."""

    def trim(self, seq: int, length: int) -> None:
        if 0 < length < len(self._seqs[seq]):
            raise RunnerError(f"this model's memory cannot be cut back to {length} tokens")
        super().trim(seq, length)


@pytest.fixture(scope="module")
def curves() -> Curves:
    measured = Curves({}, {})
    for _ in calibrate.measure(runner(), measured):
        pass
    return measured


def empty(of: FakeRunner) -> bool:
    of.run([Row(0, 1, 0, True)])  # refused unless position 0 is free
    of.trim(0, 0)
    return True


def test_curves_are_complete_and_positive(curves: Curves) -> None:
    assert {1, 2, 4, 8, 16, 64} <= curves.last.keys()
    assert {1, 2, 4, 8, 16} <= curves.every.keys()
    assert min(*curves.last.values(), *curves.every.values()) > 0
    assert StepCost(curves).ms(100, 10, 1000) > 0


def test_the_runner_is_left_empty_and_measured_one_step_at_a_time() -> None:
    measured, steps = runner(), 0
    original = measured.run

    def run(rows: list[Row]) -> object:
        nonlocal steps
        steps += 1
        return original(rows)

    measured.run = run  # type: ignore[assignment, method-assign]
    for turns, _ in enumerate(calibrate.measure(measured, Curves({}, {})), 1):
        assert steps == turns
    assert steps > 16
    assert empty(measured)


def test_a_model_whose_sequences_cannot_be_cut_back_is_measured_too() -> None:
    measured, curves = CannotBeCut(None, Model(backend="fake", context=256), max_seqs=2), Curves({}, {})
    measured.info = measured.info._replace(partial_prefix=False)
    for _ in calibrate.measure(measured, curves):
        pass
    assert {1, 64} <= curves.last.keys()
    assert empty(measured)


def test_what_is_kept_is_loaded_again(tmp_path: Path, curves: Curves) -> None:
    file = calibrate.cache_file(tmp_path / "new" / "folder", runner())
    assert calibrate.load(file) is None
    calibrate.keep(file, curves)
    assert calibrate.load(file) == curves
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_another_model_or_cache_size_has_a_file_of_its_own(tmp_path: Path) -> None:
    one, other, larger = runner(), runner(), runner()
    other.info = other.info._replace(fingerprint="fp_other")
    larger.info = larger.info._replace(kv_tokens=512)
    assert calibrate.cache_file(tmp_path, one) == calibrate.cache_file(tmp_path, runner())
    assert len({calibrate.cache_file(tmp_path, r) for r in (one, other, larger)}) == 3


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[]", b'{"last": {"x": 1}, "every": {}}', b'{"last": {"1": "\xff"}}', b"null"]
)
def test_a_damaged_file_is_measured_again_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "costs.json"
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert calibrate.load(file) is None
    assert "measuring again" in caplog.text


@pytest.mark.parametrize("value", [0, -1, 1e999])
def test_impossible_times_are_measured_again(tmp_path: Path, curves: Curves, value: float) -> None:
    file = tmp_path / "costs.json"
    text = msgspec.json.encode(msgspec.structs.replace(curves, last=curves.last | {1: 12345.5})).decode()
    file.write_text(text.replace("12345.5", "1e999" if value > 0 else str(value)))
    assert calibrate.load(file) is None


def test_curves_that_lack_a_size_are_measured_again(tmp_path: Path, curves: Curves) -> None:
    file = tmp_path / "costs.json"
    calibrate.keep(file, Curves({n: ms for n, ms in curves.last.items() if n != 16}, curves.every))
    assert calibrate.load(file) is None


def test_a_file_that_cannot_be_read_is_measured_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs.json").mkdir()
    with caplog.at_level(logging.WARNING):
        assert calibrate.load(tmp_path / "costs.json") is None
    assert "measuring again" in caplog.text


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, curves: Curves, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        calibrate.keep(tmp_path / "file" / "costs" / "x.json", curves)
    assert "cannot keep" in caplog.text
