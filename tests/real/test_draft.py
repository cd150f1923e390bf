"""A real model drafting for itself: what it proposes is nearly always what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from twospeed.config import Model
from twospeed.engine.core import Core, max_seqs
from twospeed.engine.cost import Curves
from twospeed.engine.draft_model import load_draft
from twospeed.engine.lanes import Limits
from twospeed.engine.memo import TokenMemo
from twospeed.engine.messages import DraftFile
from twospeed.engine.prepare import Preparer
from twospeed.engine.worker import loader
from twospeed.types import GenerateRequest, Sampling, TextPrompt

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def test_a_model_that_drafts_for_itself_is_right(real_model: Callable[[str], tuple[Path, Model]]) -> None:
    path, model = real_model("tiny")
    model = model.model_copy(update={"context": 1024, "slots": 2})
    seqs = max_seqs(2)
    runner = loader("llama")(path, model, max_seqs=seqs)
    file = DraftFile("tiny", str(path), model.model_dump(mode="json"))
    draft = load_draft("twin", runner, file, loader, max_seqs=seqs, tokens=6)
    core = Core()
    # A model as small as its draft has no use for it; what its steps are said to cost makes the most of it here.
    slow, quick = {1: 1000.0, 64: 1010.0}, {1: 1.0, 64: 2.0}
    limits = Limits(2, runner.info.max_rows, None, 5000)
    core.add_model(
        "twin", runner, TokenMemo(), Curves(slow, slow), limits, draft=draft._replace(curves=Curves(quick, quick))
    )
    text = "Once upon a time there was a small village at the foot of a high mountain, and in it lived"
    request = GenerateRequest(
        id="r", model="twin", prompt=TextPrompt(text), sampling=Sampling(temperature=0), max_tokens=100
    )
    core.submit(Preparer(runner.vocab, runner.info.context, None, TokenMemo()).prepare(request))
    chunks = []
    while done := core.step():
        chunks += [out.chunk for out in done[1]]
    core.close()
    timings = chunks[-1].timings
    assert timings is not None
    assert chunks[-1].finish_reason
    assert timings.draft_n > 30
    assert timings.draft_n_accepted > 0.8 * timings.draft_n
