"""The workloads: what is asked, turn by turn, and how much output is wanted. Pure.

Everything is asked as a chat. A task's first words are a mark of its own, so that no prefix cache has seen it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import code_text, texts

CHAT_TOKENS = 96
CODE_TOKENS = 320
QUOTE_TOKENS = 224
JSON_TOKENS = 288
AGENT_TOKENS = 64
LONG_TOKENS = 320

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Task:
    """One conversation of one or more turns. `fixed`: its output doesn't end before `max_tokens` where the server can
    be told so. `keeps_prefix`: later turns are meant to find the earlier ones in a cache."""

    system: str
    turns: tuple[str, ...]
    max_tokens: int
    prediction: str | None = None
    fixed: bool = False
    keeps_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Workload:
    """`tasks(number, mark)` are the tasks of one round, `number` counting from 0."""

    name: str
    title: str
    tasks: Callable[[int, str], list[Task]]


def _system(mark: str, text: str = "You are a careful assistant.") -> str:
    return f"[{mark}] {text}"


def _chat(number: int, mark: str) -> list[Task]:
    """Two questions a round: a short answer's speed wobbles."""
    chosen = [texts.QUESTIONS[(2 * number + i) % len(texts.QUESTIONS)] for i in range(2)]
    return [Task(_system(f"{mark}.{i}"), (text,), CHAT_TOKENS) for i, text in enumerate(chosen)]


def _code_edit(number: int, mark: str, predicted: bool = False) -> list[Task]:
    edit = code_text.EDITS[number % len(code_text.EDITS)]
    prediction = code_text.FILE if predicted else None
    return [Task(_system(mark), (code_text.request(edit),), CODE_TOKENS, prediction)]


def _code_edit_predicted(number: int, mark: str) -> list[Task]:
    return _code_edit(number, mark, predicted=True)


def _quote(number: int, mark: str) -> list[Task]:
    whose = ("the board", "a passenger", "the harbour office", "the crew")[number % 4]
    ask = (
        f"{texts.REPORT}\n\nSummarise this report for {whose} in two sentences. Then quote the three sentences that "
        "matter most, word for word, each on a line of its own."
    )
    return [Task(_system(mark), (ask,), QUOTE_TOKENS)]


def _json(number: int, mark: str) -> list[Task]:
    keys, notes = texts.NOTES[number % len(texts.NOTES)]
    ask = f"{notes}\n\nWrite this as a JSON array with one object for each record, keys: {keys}. Only the JSON."
    return [Task(_system(mark), (ask,), JSON_TOKENS)]


def _agent(number: int, mark: str) -> list[Task]:
    del number  # the same job each time; its answers differ by the mark
    return [Task(_system(mark, texts.AGENT_RULES), texts.OBSERVATIONS, AGENT_TOKENS, keeps_prefix=True)]


def _long(number: int, mark: str) -> list[Task]:
    return [Task(_system(mark), (texts.LONG[number % len(texts.LONG)],), LONG_TOKENS, fixed=True)]


WORKLOADS = {
    w.name: w
    for w in (
        Workload("chat", "natural chat", _chat),
        Workload("code-edit", "code edit", _code_edit),
        Workload("code-edit-predicted", "code edit with `prediction`", _code_edit_predicted),
        Workload("quote", "summarise and quote", _quote),
        Workload("json", "JSON extraction", _json),
        Workload("agent", "agent loop", _agent),
        Workload("long", "long generation", _long),
    )
}
QUICK = ("chat", "code-edit-predicted")


def background_text(number: int) -> str:
    """What the `number`th stream of the background asks: questions and long texts in turns."""
    pool = texts.LONG if number % 2 else texts.QUESTIONS
    return pool[number // 2 % len(pool)]


def opening(task: Task) -> list[Message]:
    return [{"role": "system", "content": task.system}, {"role": "user", "content": task.turns[0]}]
