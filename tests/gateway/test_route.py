"""`model: auto`: the rule table, wishes that come first, and models that are not ready."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twospeed.config import Config
from twospeed.errors import ApiError
from twospeed.gateway.route import Facts, Route, RuleRouter
from twospeed.routes import LONG_PROMPT_CHARS, Range, Routes, Rule
from twospeed.yamlfile import parse

ROOT = Path(__file__).parents[2]

FAKE: dict[str, Any] = {"backend": "fake"}
TWO: dict[str, Any] = {"fast": FAKE | {"aliases": ["mini"]}, "smart": FAKE, "tiny": FAKE}


def make(models: dict[str, Any] = TWO, **auto: Any) -> Config:
    routes = {"routes": {"auto": auto}} if auto else {}
    return Config.model_validate({"version": 1, "models": models} | routes)


def route(config: Config, facts: Facts | None = None, ready: str = "fast smart tiny") -> Route:
    return RuleRouter(config).route(facts or Facts(last_user="Hello!"), ready.split().__contains__)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(last_user="Hello, how are you?", prompt_chars=19), ("fast", "default")),
        (Facts(tools=True), ("smart", "tools")),
        (Facts(schema=True), ("smart", "schema")),
        (Facts(infill=True), ("smart", "infill")),
        (Facts(last_user="```\nx = 1\n```"), ("smart", "code")),
        (Facts(prompt_chars=LONG_PROMPT_CHARS), ("smart", "long")),
        (Facts(prompt_chars=LONG_PROMPT_CHARS - 1), ("fast", "default")),
        (Facts(tools=True, schema=True, prompt_chars=10**6), ("smart", "tools")),
    ],
)
def test_the_table_that_is_there_untouched(facts: Facts, expected: tuple[str, str]) -> None:
    chosen = route(make(), facts)
    assert (chosen.model, chosen.rule, chosen.passed_over) == (*expected, ())


@pytest.mark.parametrize(
    ("models", "plain", "hard"),
    [
        ({"m": FAKE}, "m", "m"),
        ({"a": FAKE, "b": FAKE}, "a", "a"),
        ({"a": FAKE | {"role": "smart"}, "b": FAKE | {"role": "fast"}}, "b", "a"),
        ({"a": FAKE, "b": FAKE | {"role": "smart"}}, "b", "b"),
        ({"a": FAKE | {"aliases": ["smart"]}, "b": FAKE | {"aliases": ["fast"]}}, "b", "a"),
    ],
)
def test_it_works_whatever_the_models_are_called(models: dict[str, Any], plain: str, hard: str) -> None:
    names = " ".join(models)
    assert route(make(models), Facts(), names).model == plain
    assert route(make(models), Facts(tools=True), names).model == hard


def test_rules_are_tried_in_order_and_all_conditions_of_one_must_hold() -> None:
    rules = [
        {"name": "batch", "metadata": {"team": "night", "kind": "x"}, "model": "tiny"},
        {"code": True, "turns": {"min": 3}, "model": "smart"},
        {"code": False, "prompt_chars": {"max": 10}, "model": "mini"},
    ]
    config = make(rules=rules, default="tiny")
    code = "```\n"
    assert route(config, Facts(last_user=code, turns=3))[:2] == ("smart", "code+turns>=3")
    assert route(config, Facts(last_user=code, turns=2))[:2] == ("tiny", "default")
    assert route(config, Facts(last_user="Hi", prompt_chars=2, turns=9))[:2] == ("fast", "no-code+prompt_chars<=10")
    assert route(config, Facts(metadata={"team": "night", "kind": "x", "more": ""}))[:2] == ("tiny", "batch")
    assert route(config, Facts(metadata={"team": "night"}, last_user="?"))[:2] == ("fast", "no-code+prompt_chars<=10")


@pytest.mark.parametrize("wish", ["smart", "mini", "tiny"])
def test_a_wish_in_metadata_or_header_decides_first(wish: str) -> None:
    model = {"mini": "fast"}.get(wish, wish)
    plain = Facts(tools=True, header=wish)
    assert route(make(), plain)[:2] == (model, "header")
    assert route(make(), Facts(metadata={"twospeed-route": wish}))[:2] == (model, "metadata")


def test_metadata_comes_before_the_header_and_auto_is_no_wish() -> None:
    both = Facts(metadata={"twospeed-route": "tiny"}, header="smart")
    assert route(make(), both)[:2] == ("tiny", "metadata")
    assert route(make(), Facts(metadata={"twospeed-route": "auto"}, header="auto", tools=True))[:2] == (
        "smart", "tools",
    )  # fmt: skip


def test_a_wish_that_names_nothing_is_refused_by_name() -> None:
    for facts, param in (
        (Facts(header="best"), "x-twospeed-route"),
        (Facts(metadata={"twospeed-route": "best"}), "metadata.twospeed-route"),
    ):
        with pytest.raises(ApiError) as caught:
            route(make(), facts)
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)


def test_a_model_that_is_not_ready_is_passed_over() -> None:
    chosen = route(make(), Facts(tools=True), "fast tiny")
    assert (chosen.model, chosen.passed_over, chosen.header) == ("fast", ("smart",), "tools; smart not ready")
    assert route(make(), ready="smart").header == "default; fast not ready"
    assert route(make(), Facts(header="tiny"), "fast").header == "header; tiny not ready"


def test_the_first_choice_is_waited_for_where_no_model_of_the_table_is_ready() -> None:
    chosen = route(make(), Facts(tools=True), "tiny")  # which the table never names
    assert (chosen.model, chosen.header) == ("smart", "tools")


def test_what_a_later_rule_says_is_the_next_best_and_a_role_may_be_many() -> None:
    models = TWO | {"big": FAKE | {"role": "expert"}, "bigger": FAKE | {"role": "expert"}}
    rules = [
        {"tools": True, "model": "expert"},
        {"schema": True, "model": "tiny"},
        {"tools": True, "schema": True, "model": "smart"},
    ]
    config = make(models, rules=rules)
    facts = Facts(tools=True, schema=True)
    order = ["big", "bigger", "tiny", "smart", "fast"]
    for number, name in enumerate(order):
        chosen = route(config, facts, " ".join(order[number:]))
        assert (chosen.model, list(chosen.passed_over)) == (name, order[:number])
    assert RuleRouter(config).models == ["big", "bigger", "tiny", "smart", "fast"]


@pytest.mark.parametrize("auto", [{"default": "nope"}, {"rules": [{"tools": True, "model": "nope"}]}])
def test_a_table_that_names_an_unknown_model_is_refused(auto: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no model, alias or role is 'nope'"):
        make(**auto)


def test_a_prompt_is_not_in_what_is_printed_of_facts() -> None:
    assert "terces" not in repr(Facts(last_user="terces"))


_ranges = st.builds(
    lambda low, high: {"min": low, "max": low + high}, st.integers(0, 50), st.integers(0, 50)
) | st.fixed_dictionaries({"min": st.integers(0, 100)})
_rules = st.fixed_dictionaries(
    {"model": st.sampled_from(["fast", "smart", "tiny", "mini"])},
    optional={
        "tools": st.booleans(),
        "schema": st.booleans(),
        "infill": st.booleans(),
        "code": st.booleans(),
        "prompt_chars": _ranges,
        "turns": _ranges,
        "metadata": st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"), min_size=1),
    },
).filter(lambda rule: len(rule) > 1)
_facts = st.builds(
    Facts,
    tools=st.booleans(),
    schema=st.booleans(),
    infill=st.booleans(),
    prompt_chars=st.integers(0, 120),
    turns=st.integers(0, 120),
    last_user=st.sampled_from(["Hello", "```\n"]),
    metadata=st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")),
)


def _holds(rule: dict[str, Any], facts: Facts) -> bool:
    """The same in other words."""
    for key, wanted in rule.items():
        if key in ("prompt_chars", "turns"):
            number = getattr(facts, key)
            if not wanted.get("min", 0) <= number <= wanted.get("max", 10**9):
                return False
        elif key == "metadata":
            if not wanted.items() <= facts.metadata.items():
                return False
        elif key != "model" and getattr(facts, key) is not wanted:
            return False
    return True


@given(rules=st.lists(_rules, max_size=6), facts=_facts, ready=st.sets(st.sampled_from(["fast", "smart", "tiny"])))
def test_the_first_rule_that_holds_decides(rules: list[dict[str, Any]], facts: Facts, ready: set[str]) -> None:
    config = make(rules=rules, default="fast")
    first = next((rule for rule in rules if _holds(rule, facts)), None)
    wanted = config.resolve(first["model"] if first else "fast")
    router = RuleRouter(config)
    chosen = router.route(facts, ready.__contains__)
    assert chosen.rule == (Rule.model_validate(first).title if first else "default")
    named = set(router.models)
    if ready & named:
        assert chosen.model in ready & named
        assert (chosen.model == wanted) == (wanted in ready)
        assert not set(chosen.passed_over) & ready
    else:
        assert (chosen.model, chosen.passed_over) == (wanted, ())
    assert chosen.header.isascii()
    assert chosen.header.isprintable()


def test_the_examples_in_models_yaml_and_the_docs_are_right() -> None:
    written = (ROOT / "models.yaml").read_text("utf-8")
    (example,) = re.findall(r"^# routes:\n(?:#  .*\n)+", written, re.MULTILINE)
    routes = parse(re.sub(r"^# ", "", example, flags=re.MULTILINE), "f", {}).data["routes"]
    assert Routes.model_validate(routes) == Routes(), "it says that this is what holds without"
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/routing.md").read_text("utf-8"), re.DOTALL)
    config = make(**parse(example, "f", {}).data["routes"]["auto"])
    assert route(config, Facts(metadata={"team": "night"})).rule == "night"


def test_a_range_says_what_it_is() -> None:
    assert [str(Range(min=3)), str(Range(max=4)), str(Range(min=3, max=4))] == [">=3", "<=4", ">=3<=4"]
