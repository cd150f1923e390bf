"""Chat templates: what they may do, what they may not, and that they end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from twospeed.engine.template import ChatTemplate, TemplateError, _Deadline

MESSAGES = [{"role": "user", "content": "hi"}]


def template(source: str, timeout_s: float = 5) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", timeout_s=timeout_s)


def render(source: str, messages: list[dict[str, Any]] | None = None, **kwargs: Any) -> str:
    return template(source).render(MESSAGES if messages is None else messages, **kwargs)


def test_messages_and_the_models_tokens_are_there() -> None:
    source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}: {{ m['content'] }}]{% endfor %}{{ eos_token }}"
    assert render(source) == "<s>[user: hi]</s>"


def test_the_prompt_ends_with_the_assistants_turn() -> None:
    assert render("{% if add_generation_prompt %}<|assistant|>{% endif %}") == "<|assistant|>"


def test_block_lines_leave_no_blank_ones() -> None:
    assert render("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\n") == "x\n"


def test_loop_controls_namespaces_and_generation_blocks_of_common_templates_work() -> None:
    source = (
        "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}"
        "{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ messages[0].content.strip().split('i')[0] }}"
    )
    assert render(source) == "3h"


def test_json_is_written_for_a_model_and_not_for_html() -> None:
    value = {"a": "<é> & 'x'"}
    assert render("{{ v | tojson }}", v=value) == '{"a": "<é> & \'x\'"}'
    assert render("{{ v | tojson(indent=2) }}", v={"a": 1}) == '{\n  "a": 1\n}'


def test_text_is_not_escaped() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": "<b> & {{ x }}"}]) == "<b> & {{ x }}"


def test_the_date_is_known() -> None:
    assert render("{{ strftime_now('%Y') }}").isdigit()


def test_arguments_reach_the_template_but_cannot_replace_what_the_server_says() -> None:
    source = "{{ messages | length }}{{ bos_token }}{{ eos_token }}{{ thinking }}"
    evil = dict.fromkeys(("messages", "bos_token", "eos_token"), "evil")
    assert template(source).render(MESSAGES, **evil, thinking="yes") == "1<s></s>yes"


def test_a_template_refuses_messages_in_its_own_words() -> None:
    with pytest.raises(TemplateError, match=r"^roles must alternate$"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['ctypes'] }}",
        "{{ strftime_now.__globals__['sys'] }}",
        "{{ messages['__class__'].__bases__ }}",
        "{{ (messages | attr('__class__')).__name__ }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_pythons_objects_and_files_are_out_of_reach(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].pop('role') }}",
    ],
)
def test_messages_cannot_be_changed(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(TemplateError):
        render(source, messages)
    assert messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ 9 ** 9 }}",
        "{{ 'x' * 2000000 }}",
        "{{ 2000000 * 'x' }}",
        "{{ [1] * 2000000 }}",
        "{{ ('x' * 1000000) * 1000000 }}",
        "{{ 'x' | center(2000000) }}",
        "{{ range(2000000) | list }}",
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 1 }}",
    ],
)
def test_huge_values_are_refused_at_once(source: str) -> None:
    start = time.monotonic()
    with pytest.raises(TemplateError):
        render(source)
    assert time.monotonic() - start < 2


def test_ordinary_arithmetic_and_repetition_work() -> None:
    assert render("{{ 6 * 7 }} {{ -2 * 3 }} {{ 1.5 * 2 }} {{ 'ab' * 3 }} {{ 'x' * -1 }}.") == "42 -6 3.0 ababab ."


ENDLESS = "{% for x in range(99999) %}" * 3 + "{% endfor %}" * 3


def test_a_template_that_does_not_end_is_stopped_and_the_next_one_works() -> None:
    start = time.monotonic()
    with pytest.raises(TemplateError, match=r"ran longer than 0\.2 s"):
        template(ENDLESS, 0.2).render(MESSAGES)
    assert 0.2 <= time.monotonic() - start < 2
    assert render("{{ messages[0].content }}") == "hi"


def test_a_time_limit_hits_only_the_thread_whose_template_it_is() -> None:
    failures: list[str] = []

    def endless() -> None:
        try:
            template(ENDLESS, 0.2).render(MESSAGES)
        except TemplateError as error:
            failures.append(str(error))

    thread = threading.Thread(target=endless)
    thread.start()
    quick = template("{{ messages[0].content }}")
    while thread.is_alive():
        assert quick.render(MESSAGES) == "hi"
    thread.join()
    assert len(failures) == 1


def test_a_limit_that_runs_out_just_as_the_template_ends_never_shows_later() -> None:
    racing = template("{% for a in range(300) %}{{ a }}{% endfor %}", 0.0003)
    results = set()
    for _ in range(150):
        try:
            results.add(racing.render(MESSAGES))
        except TemplateError as error:
            results.add(str(error))
        sum(range(200))  # would be interrupted here
    assert results <= {"".join(map(str, range(300))), "the chat template ran longer than 0.0003 s"}


def test_a_limit_that_is_found_to_have_run_out_afterwards_stops_nothing() -> None:
    deadline = _Deadline(60)
    with deadline:
        pass
    deadline._throw()
    assert sum(range(10_000)) == 49_995_000


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% unknown %}", "{{ x | nofilter }}"])
def test_a_template_that_does_not_compile_is_refused_when_it_is_loaded(source: str) -> None:
    with pytest.raises(TemplateError, match="does not compile"):
        template(source)


@pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ messages[0].content + 1 }}", "{{ nothing.at.all }}"])
def test_what_python_raises_inside_is_the_templates_fault(source: str) -> None:
    with pytest.raises(TemplateError, match="the chat template failed"):
        render(source)
