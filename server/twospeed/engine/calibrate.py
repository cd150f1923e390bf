"""Measure what a step costs on this machine, once per file, build and set of knobs; kept on disk.

The measurement is a generator that runs one bounded step at a time, so that models that already serve go on
between its steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .cost import Curves
from .runner.base import Row, Runner

_log = logging.getLogger("twospeed.engine")

_LAST = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 64)
_EVERY = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 48, 64)
_WARM = 32  # tokens already in the sequence that is measured
_SEQ = 0
_TRIES = 2  # the better one counts: a shared machine only ever makes a step slower
_SHORT_MS = 60  # shorter steps are noisier and cheap
_SHORT_TRIES = 4


def measure(runner: Runner, curves: Curves) -> Iterator[None]:
    """Fill `curves` by running steps on the empty `runner`; leaves it empty. Yields between steps."""
    tokens = _tokens(runner)
    warm = _WARM if runner.info.partial_prefix else 0  # one that cannot be cut back is measured from empty
    if warm:
        runner.run([Row(_SEQ, tokens[i], i, i == warm - 1) for i in range(warm)])
        yield
    for attempt in range(_SHORT_TRIES):  # whole rounds, so that a disturbance does not hit all tries of a size
        for sizes, points, every in ((_LAST, curves.last, False), (_EVERY, curves.every, True)):
            for n in sizes:
                if attempt < _TRIES or points[n] < _SHORT_MS:
                    ms = _time(runner, tokens[warm : warm + n], warm, every=every)
                    points[n] = min(points.get(n, ms), ms)
                    yield
    if warm:
        runner.trim(_SEQ, 0)


def _time(runner: Runner, tokens: list[int], first: int, *, every: bool) -> float:
    """Milliseconds of a step of `tokens` from position `first` on, with logits for `every` row or the last one."""
    rows = [Row(_SEQ, token, first + i, every or i == len(tokens) - 1) for i, token in enumerate(tokens)]
    start = time.perf_counter()
    runner.run(rows)
    ms = (time.perf_counter() - start) * 1000
    runner.trim(_SEQ, first)
    return ms


def _tokens(runner: Runner) -> list[int]:
    text = "The quick brown fox jumps over the lazy dog; 12 lines of code, and a question: why not? "
    need = _WARM + max(_LAST)
    tokens = runner.vocab.tokenize(text, bos=True)
    while len(tokens) < need:
        tokens += runner.vocab.tokenize(text, bos=False)
    return tokens[:need]


def cache_file(folder: Path, runner: Runner) -> Path:
    """Where the curves of this model on this machine are kept."""
    facts = [runner.info.fingerprint, runner.info.kv_tokens, platform.machine(), _cpu()]
    return folder / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}.json"


def _cpu() -> str:
    """The CPU's model, so that curves do not move along with a home folder to another machine."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(errors="replace").splitlines()
        return next(
            (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))), ""
        )
    return platform.processor()


def load(file: Path) -> Curves | None:
    """The kept curves, or None where there are none that can be used."""
    try:
        curves = msgspec.json.decode(file.read_bytes(), type=Curves)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError, msgspec.MsgspecError) as error:
        _log.warning("measuring again, %s cannot be read: %s", file.name, error)
        return None
    complete = set(_LAST) <= curves.last.keys() and set(_EVERY) <= curves.every.keys()
    return curves if complete and all(ms > 0 for ms in (*curves.last.values(), *curves.every.values())) else None


def keep(file: Path, curves: Curves) -> None:
    """Write `curves` for the next start; a folder that cannot be written costs only a measurement then."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(curves))
        temporary.replace(file)
    except OSError as error:
        _log.warning("cannot keep the step costs: %s", error)
