"""Chat templates: Jinja source from a GGUF, run in a sandbox with a time limit.

The template is as untrusted as the file it came in: it sees the messages and nothing else, cannot reach
Python's objects (jinja2.sandbox), cannot build huge strings by repetition and is stopped when it takes too
long. The functions and filters are those that Hugging Face's chat templates rely on.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import threading
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

_MAX_REPEAT = 1_000_000
_MAX_BITS = 1_000  # one multiplication of huge numbers could not be stopped


class TemplateError(Exception):
    """The template is broken, refused these messages or took too long; str() is one line."""


class _TimedOut(Exception):  # noqa: N818 - thrown into the rendering thread, never seen outside
    pass


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateError("the chat template may not use **")
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
            raise TemplateError("the chat template computes too large a number")
        for text, times in ((left, right), (right, left)):
            if hasattr(text, "__len__") and isinstance(times, int) and len(text) * times > _MAX_REPEAT:
                raise TemplateError("the chat template repeats something too often")
        return super().call_binop(context, operator, left, right)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike Jinja's own, without HTML escapes: the reader is a model."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


class ChatTemplate:
    """A compiled template of one model."""

    def __init__(self, source: str, *, bos_text: str, eos_text: str, timeout_s: float) -> None:
        """Raises TemplateError where `source` does not compile."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        del environment.filters["center"]  # pads to any width
        environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template does not compile: {error}") from error
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._timeout = timeout_s

    def render(self, messages: list[dict[str, Any]], /, **kwargs: Any) -> str:
        """The prompt for `messages`, ready for the assistant's turn. Raises TemplateError."""
        try:
            with _Deadline(self._timeout):
                variables = {"add_generation_prompt": True, **kwargs, **self._tokens, "messages": messages}
                return self._template.render(variables)
        except _TimedOut:
            raise TemplateError(f"the chat template ran longer than {self._timeout:g} s") from None
        except TemplateError:
            raise
        except Exception as error:  # whatever Python raises inside a template is the template's fault
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error


class _Deadline:
    """Throws _TimedOut into the thread that entered it when time is up."""

    def __init__(self, seconds: float) -> None:
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._throw)
        self._timer.daemon = True

    def _throw(self) -> None:
        with self._lock:
            if not self._over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(_TimedOut))

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
