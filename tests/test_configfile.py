from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twospeed import configfile
from twospeed.config import Config, Knobs
from twospeed.configfile import ConfigError, effective, effective_text, find_config, json_schema, load_config
from twospeed.yamlfile import MAX_NODES, core_scalar, dump, parse

ROOT = Path(__file__).parents[1]
FAKE = "version: 1\nmodels:\n  m: {backend: fake}\n"

Load = Callable[..., Config]


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Write `text` to models.yaml and load it. One file for all, so that hypothesis can use it."""
    file = tmp_path_factory.mktemp("config") / "models.yaml"

    def write_and_load(text: str | bytes, **env: str) -> Config:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(file, env=env)

    return write_and_load


def problems(load: Load, text: str | bytes, **env: str) -> list[str]:
    """The problems that loading `text` gives, without the file's folder."""
    with pytest.raises(ConfigError) as caught:
        load(text, **env)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem[problem.index("models.yaml") :] for problem in caught.value.problems]


# --- errors -----------------------------------------------------------------------------------------------------


def test_every_problem_is_listed_with_its_line_and_key(load: Load) -> None:
    text = """version: 1
server:
  port: 70000
models:
  fast:
    backend: fake
    slots: 0
  smart:
    sources: nothing
    sampling:
      temperature: 3
"""
    assert problems(load, text) == [
        "models.yaml:3: server.port: Input should be less than or equal to 65535",
        "models.yaml:7: models.fast.slots: Input should be greater than or equal to 1",
        "models.yaml:9: models.smart.sources: Input should be a valid list",
        "models.yaml:11: models.smart.sampling.temperature: Input should be less than or equal to 2",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server:\n  prot: 1\n", "models.yaml:5: server.prot: unknown key; did you mean 'port'?"),
        ("severs: {}\n", "models.yaml:4: severs: unknown key; did you mean 'server'?"),
        ("  n: {sampling: {tempratur: 1}, backend: fake}\n", "did you mean 'temperature'?"),
        (
            "server:\n  api_keys:\n  - name: x\n    kee: 0123456789abcdef\n",
            "models.yaml:7: server.api_keys[0].kee: unknown key",
        ),
        ("server:\n  api_keys:\n  - key: 0123456789abcdef\n", "models.yaml:6: server.api_keys[0].name: missing"),
        ("server: {completely_different: 1}\n", "models.yaml:4: server.completely_different: unknown key"),
        ("version: 1\n", "models.yaml:4: version: duplicate key; the first one is in line 1"),
        ("  n: {threads: many, backend: fake}\n", "models.n.threads: Input should be a valid integer"),
        (
            "  n: {threads: 0, backend: fake}\n",
            "models.n.threads: Input should be greater than or equal to 1 or 'auto'",
        ),
        ("  n: {context: 512, kv_tokens: 256, backend: fake}\n", "models.yaml:4: models.n.kv_tokens: must be"),
        (
            "  n: {backend: fake, draft: {model: o}}\n",
            "models.yaml:4: models.n.draft.model: there is no model 'o'; there are: m",
        ),
        (
            "  n: {backend: fake, aliases: [o], draft: {model: o}}\n",
            "models.yaml:4: models.n.draft.model: a model can't draft for itself",
        ),
        (
            "  n: {backend: fake, draft: {model: m}}\n  o: {backend: fake, draft: {model: n}}\n",
            "models.yaml:5: models.o.draft.model: 'n' has a draft of its own",
        ),
        ("  n: {backend: fake, draft: {model: m, tokens: 0}}\n", "models.n.draft.tokens: Input should be greater"),
        ("  n: {backend: fake, draft: {tokens: 4}}\n", "models.n.draft.model: missing"),
        ("  n: {}\n", "models.yaml:4: models.n.sources: a model needs at least one"),
        ("  n:\n", "models.yaml:4: models.n: Input should be a mapping"),
        ("  n.1: {backend: fake, aliases: [m]}\n", "models.yaml:4: models.n.1.aliases: 'm' is already a name"),
        ("  auto: {backend: fake}\n", "models.yaml:2: models: 'auto' is reserved"),
        ("  'a b': {backend: fake}\n", "models.yaml:4: models.a b: String should match"),
        ("server: {host: 5}\n", "models.yaml:4: server.host: Input should be a valid string (quotes make it one)"),
        (
            "routes:\n  auto:\n    rules:\n    - {tools: true, model: m}\n    - {code: true, model: n}\n",
            "models.yaml:8: routes.auto.rules[1].model: no model, alias or role is 'n'; there are: m, fast, smart",
        ),
        ("routes: {auto: {default: n}}\n", "models.yaml:4: routes.auto.default: no model, alias or role is 'n'"),
        (
            "routes: {auto: {rules: [{tols: true, model: m}]}}\n",
            "models.yaml:4: routes.auto.rules[0].tols: unknown key; did you mean 'tools'?",
        ),
        ("routes: {auto: {rules: [{model: m}]}}\n", "routes.auto.rules[0]: a rule needs a condition"),
        ("routes: {auto: {rules: [{code: true}]}}\n", "routes.auto.rules[0].model: missing"),
        (
            "routes: {auto: {rules: [{turns: {min: 3, max: 2}, model: m}]}}\n",
            "routes.auto.rules[0].turns.min: must not be above max",
        ),
        ("routes: {auto: {rules: [{turns: {}, model: m}]}}\n", "routes.auto.rules[0].turns: give min, max or both"),
        (
            "routes: {auto: {rules: [{name: 'a; b', code: true, model: m}]}}\n",
            "routes.auto.rules[0].name: String should match",
        ),
        ("defaults: {threads: 0}\n", "models.yaml:4: defaults.threads: Input should be greater"),
        ("? [a]\n: 1\n", "models.yaml:4: a key must be text"),
        ("server: [\n", "models.yaml:5: while parsing a flow node"),
        ("server: *nowhere\n", "models.yaml:4: found undefined alias"),
        ("server: !!python/name:os.system x\n", "models.yaml:4: tags (!...) are not allowed"),
        ("---\nversion: 1\n", "models.yaml:4: expected a single document"),
        ("server: {host: \x07}\n", "models.yaml:4: character"),
    ],
)
def test_a_problem_is_named_by_line_and_key(load: Load, text: str, problem: str) -> None:
    found = problems(load, FAKE + text)
    assert len(found) == 1
    assert problem in found[0]


def test_a_bad_default_is_reported_once_and_where_it_stands(load: Load) -> None:
    text = FAKE + "  n: {backend: fake}\ndefaults: {slots: 0}\n"
    assert problems(load, text) == ["models.yaml:5: defaults.slots: Input should be greater than or equal to 1"]


@pytest.mark.parametrize("text", ["", "5", "[]", "null", "models", "# only a comment"])
def test_a_file_that_is_no_mapping_is_refused(load: Load, text: str) -> None:
    assert problems(load, text) == ["models.yaml:1: Input should be a mapping"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: cannot be read: "):
            load_config(path)


def test_a_file_that_is_not_utf8_names_the_line(load: Load) -> None:
    assert problems(load, b"version: 1\n# caf\xe9\n") == ["models.yaml:2: not UTF-8 text"]


def test_a_byte_order_mark_is_no_problem(load: Load) -> None:
    assert load(b"\xef\xbb\xbf" + FAKE.encode()) == load(FAKE)


def test_a_huge_file_is_refused_unread(load: Load) -> None:
    assert problems(load, FAKE + "#" * configfile.MAX_BYTES) == ["models.yaml: larger than 1048576 bytes"]


def test_two_keys_of_one_name_are_refused(load: Load) -> None:
    keys = "".join(f"  - {{name: laptop, sha256: {digit * 64}}}\n" for digit in "ab")
    (problem,) = problems(load, FAKE + "server:\n  api_keys:\n" + keys.replace("  -", "    -"))
    assert "the name 'laptop' is used twice" in problem


def test_aliases_work(load: Load) -> None:
    config = load("version: 1\nmodels:\n  a: &a {backend: fake, slots: 3}\n  b: *a\n")
    assert config.models["a"] == config.models["b"]


def test_an_alias_bomb_is_refused(load: Load) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert "too many values" in problems(load, "\n".join(rows))[-1]


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "[" * 5000, "{a: " * 5000, "- " * 5000])
def test_endless_or_deep_nesting_is_refused(load: Load, text: str) -> None:
    assert "nested too deeply" in problems(load, text)[-1]


def test_a_long_list_within_the_bounds_is_read() -> None:
    size = MAX_NODES - 1
    assert len(parse("[" + "x," * size + "]", "f", {}).data) == size


def test_no_error_shows_a_secret(load: Load) -> None:
    secret = "sk-do-not-show"  # noqa: S105  # and shorter than a key may be
    text = (
        FAKE
        + "server:\n  port: ${env.KEY}\n  api_keys: [{name: '${env.KEY}!', key: '${env.KEY}', sha256: '${env.KEY}'}]\n"
    )
    found = problems(load, text, KEY=secret)
    assert len(found) == 4
    assert secret not in "".join(found)


# --- values -----------------------------------------------------------------------------------------------------


def test_a_placeholder_takes_its_value_and_type_from_the_environment(load: Load) -> None:
    text = FAKE + "server: {host: '${env.HOST:-here}', max_queue: 5}\ndefaults:\n  threads: ${env.THREADS:-auto}\n"
    assert (load(text).server.host, load(text).models["m"].threads) == ("here", "auto")
    config = load(text, HOST="h${env.X}", THREADS="3")
    assert config.models["m"].threads == 3
    assert config.server.host == "h${env.X}"  # a value is not looked into again


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${env.N}", 8000),
        ("${env.NONE:-7}", 7),
        ("${env.EMPTY:-7}", 7),
        ("${env.EMPTY}", None),
        ("${env.NONE:-}", None),
        ("'${env.N}'", "8000"),
        ('"${env.N}"', "8000"),
        ("${env.N}0", "80000"),
        ("${env.N}${env.N}", "80008000"),
        ("a ${env.N} b ${env.NONE:-c d} e", "a 8000 b c d e"),
        ("$${env.N}", "${env.N}"),
        ("$${", "${"),
        ("$$${env.N}", "$${env.N}"),
        ("$env.N", "$env.N"),
        ("'${env.NONE:-: # }'", ": # "),
    ],
)
def test_interpolation(written: str, value: object) -> None:
    assert parse(f"key: {written}", "f", {"N": "8000", "EMPTY": ""}).data == {"key": value}


def test_an_unset_variable_names_itself_its_line_and_key(load: Load) -> None:
    text = FAKE + "server:\n  host: ${env.TWO}\n  port: ${env.ONE}\n"
    assert problems(load, text) == [
        "models.yaml:5: server.host: the environment variable TWO is not set",
        "models.yaml:6: server.port: the environment variable ONE is not set",
    ]


@pytest.mark.parametrize("written", ["${NAME}", "${env.NAME", "${env.}", "x${", "${env.NAME-7}", "${env.1}"])
def test_a_malformed_placeholder_is_an_error(load: Load, written: str) -> None:
    found = problems(load, FAKE + f"server:\n  host: '{written}'\n", NAME="x")
    assert found == ["models.yaml:5: server.host: write ${env.NAME} or ${env.NAME:-default}, or $${ for a plain ${"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("-1e3", -1000.0),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("infinity", "infinity"),
        ("1e", "1e"),
    ],
)
def test_plain_scalars_follow_the_core_rules(text: str, value: object) -> None:
    found = core_scalar(text)
    assert (found, type(found)) == (value, type(value))


def test_defaults_fill_what_a_model_leaves_out(load: Load) -> None:
    config = load(FAKE + "  n: {backend: fake, slots: 2}\ndefaults: {slots: 5, threads: 3}\n")
    assert [(model.slots, model.threads) for model in config.models.values()] == [(5, 3), (2, 3)]


def test_file_paths_are_relative_to_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    file = tmp_path / "models.yaml"
    sources = ["file:a.gguf", "file:../b.gguf", "file:~/c.gguf", "file:/d.gguf", "hf:o/r/e.gguf"]
    file.write_text(
        f"version: 1\nmodels:\n  m: {{sources: {json.dumps(sources)}, chat_template: file:t.jinja}}\n"
        "  n: {backend: fake, chat_template: '{{ file }}'}\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    config = load_config(Path(tmp_path.name, "models.yaml"))
    assert config.models["m"].sources == [
        f"file:{tmp_path}/a.gguf",
        f"file:{tmp_path.parent}/b.gguf",
        "file:/home/somebody/c.gguf",
        "file:/d.gguf",
        "hf:o/r/e.gguf",
    ]
    assert config.models["m"].chat_template == f"file:{tmp_path}/t.jinja"
    assert config.models["n"].chat_template == "{{ file }}"


# --- where it is ------------------------------------------------------------------------------------------------


def test_the_nearest_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config() == ROOT / "models.yaml"
    (tmp_path / "models.yaml").touch()
    assert find_config() == Path("models.yaml")
    assert find_config(Path("other.yaml")) == Path("other.yaml")


def test_an_installed_package_uses_the_file_it_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "site-packages" / "twospeed"
    package.mkdir(parents=True)
    monkeypatch.setattr(configfile, "__file__", str(package / "configfile.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="name one with --config"):
        find_config()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    (package.parent / wheel["force-include"]["models.yaml"]).touch()
    assert find_config() == package / "models.yaml"


def test_the_models_yaml_that_comes_with_twospeed_is_right() -> None:
    config = load_config(ROOT / "models.yaml", env={})
    assert [config.resolve(name) for name in ("fast", "gpt-4o-mini", "gpt-4o", "tiny")] == [
        "fast",
        "fast",
        "smart",
        "tiny",
    ]
    assert all(model.sha256 and model.size for model in config.models.values())
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8000)


# --- printing it ------------------------------------------------------------------------------------------------

_text = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n${}:#'\"- "), max_size=30
)
_names = st.from_regex(r"[a-z0-9][A-Za-z0-9._:/-]{0,12}", fullmatch=True).filter(lambda name: name != "auto")
_knobs = st.fixed_dictionaries(
    {},
    optional={
        "threads": st.integers(1, 512) | st.just("auto"),
        "slots": st.integers(1, 64),
        "kv_type": st.sampled_from(["f16", "q8_0"]),
        "flash_attention": st.booleans() | st.just("auto"),
        "max_step_ms": st.floats(0, 1e30, exclude_min=True),
    },
)
_models = st.builds(
    lambda knobs, own: own | knobs,
    _knobs,
    st.fixed_dictionaries(
        {"backend": st.just("fake")},
        optional={
            "sources": st.lists(_text.map(lambda text: f"hf:o/r/x{text}") | _text.map(lambda text: f"file:/x{text}")),
            "chat_template": _text,
            "sampling": st.fixed_dictionaries({"temperature": st.floats(0, 2)}),
            "sha256": st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
            | st.from_regex(r"[0-9]{62}e[0-9]", fullmatch=True),
        },
    ),
)
_keys = st.fixed_dictionaries({"name": _names, "key": st.text("0123456789e.-", min_size=16, max_size=40)})
_rules = st.fixed_dictionaries(
    {"model": st.sampled_from(["fast", "smart"]), "code": st.booleans()},
    optional={
        "name": _names,
        "schema": st.booleans(),
        "turns": st.fixed_dictionaries({"min": st.integers(0, 5)}, optional={"max": st.integers(5, 9)}),
        "metadata": st.dictionaries(_text, _text, max_size=2),
    },
)
_configs = st.fixed_dictionaries(
    {"version": st.just(1), "models": st.dictionaries(_names, _models, min_size=1, max_size=3)},
    optional={
        "defaults": _knobs,
        "routes": st.fixed_dictionaries({"auto": st.fixed_dictionaries({"rules": st.lists(_rules, max_size=3)})}),
        "server": st.fixed_dictionaries(
            {"host": _text, "api_keys": st.lists(_keys, max_size=2, unique_by=lambda key: str(key["name"]))}
        ),
    },
)


@settings(max_examples=60, deadline=None)
@given(data=_configs)
def test_the_effective_configuration_is_a_models_yaml_with_the_same_meaning(
    load: Load, data: dict[str, object]
) -> None:
    first = load(dump(data))
    text = effective_text(first)
    second = load(text)
    assert effective_text(second) == text
    assert second.models == first.models
    assert second.defaults == first.defaults
    assert second.routes == first.routes
    for before, after in zip(first.server.api_keys, second.server.api_keys, strict=True):
        assert before.key is not None
        assert before.key not in str(effective(first)["server"]["api_keys"])
        assert (after.name, after.key, len(after.sha256 or "")) == (before.name, None, 64)


@settings(max_examples=100, deadline=None)
@given(text=_text)
@example("1e5")
@example("null")
@example("${env.X}$${")
@example(" \n a\n")
@example("12:30:45")
def test_text_survives_being_written_and_read(text: str) -> None:
    assert parse(dump({"key": text}), "f", {}).data == {"key": text}


def test_everything_in_effect_is_printed(load: Load) -> None:
    shown = effective(load(FAKE))
    assert shown["defaults"].keys() == Knobs.model_fields.keys()
    assert shown["models"]["m"].keys() > shown["defaults"].keys()


_yamlish = st.text(st.sampled_from("{}[]:,-?&*!|>'\"#%@`\\ \n\tab01~<$.eUx\x85\ufeff"), max_size=80)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    text = (ROOT / "models.yaml").read_bytes()
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    return text[:start] + draw(_yamlish.map(str.encode) | st.binary(max_size=8)) + text[end:]


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=60) | _yamlish.map(str.encode) | _mutated())
@example(b"%YAML 1." + b"9" * 5000 + b"\n---\nx")
@example(b'"\\UFFFFFFFF"')
@example(b"a: " + b"9" * 5000)
@example(b"a: 0x" + b"f" * 5000)
@example(b"!")
@example(b"\x85")
def test_bytes_of_any_kind_load_or_give_a_config_error(load: Load, raw: bytes) -> None:
    try:
        load(raw)
    except ConfigError as error:
        found = error.problems
    else:
        return
    assert found
    assert all("models.yaml:" in problem for problem in found)


# --- schema -----------------------------------------------------------------------------------------------------


def test_the_committed_schema_is_current() -> None:
    """If this fails: twospeed config --schema > docs/models.schema.json"""
    assert json.loads((ROOT / "docs/models.schema.json").read_text()) == json_schema()


def test_the_schema_is_the_one_that_models_yaml_names() -> None:
    first = (ROOT / "models.yaml").read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={os.path.join('docs', 'models.schema.json')}"


def test_the_schema_lets_placeholders_stand_for_numbers_and_choices_but_not_for_mappings() -> None:
    schema = json_schema()
    placeholder = {"$ref": "#/$defs/Placeholder"}
    knobs = schema["$defs"]["Knobs"]["properties"]
    assert all(placeholder in knobs[name]["anyOf"] for name in ("slots", "threads", "mmap", "kv_type"))
    assert placeholder in schema["$defs"]["Model"]["properties"]["sources"]["items"]["anyOf"]
    assert "anyOf" not in schema["properties"]["server"]
    assert re.search(schema["$defs"]["Placeholder"]["pattern"], "${env.PORT:-8000}")
    assert schema["$defs"]["Model"].get("required", []) == []


def test_the_schema_lets_everything_be_left_out_that_the_file_may_leave_out() -> None:
    definitions = json_schema()["$defs"]
    for name in ("ServiceTiers", "TierPolicy", "Preview"):
        assert "required" not in definitions[name], name
    assert definitions["ServiceTiers"]["properties"]["flex"]["$ref"] == "#/$defs/TierPolicy"
    assert definitions["ApiKey"]["required"] == ["name"]


def test_tiers_keys_and_preview_that_do_not_fit_are_named_by_line(load: Load) -> None:
    text = (
        FAKE
        + "server:\n  api_keys:\n  - {name: a, key: 0123456789abcdef}\n  - name: b\n    key: fedcba9876543210\n"
        + "    default_tier: ultrafast\n"
    )
    assert problems(load, text) == ["models.yaml:9: server.api_keys[1].default_tier: 'b' is not in preview.ultrafast"]
    assert problems(load, text + "preview: {ultrafast: [b, c]}\n") == [
        "models.yaml:10: preview.ultrafast: 'c' is the name of no key in server.api_keys"
    ]
    assert problems(load, FAKE + "service_tiers:\n  flex: {shares: 1}\n") == [
        "models.yaml:5: service_tiers.flex.shares: unknown key; did you mean 'share'?"
    ]
    assert (
        load(text + "preview: {ultrafast: [b]}\nservice_tiers: {flex: {share: 0.05}}\n").service_tiers.flex.share
        == 0.05
    )


def test_the_examples_in_models_yaml_are_right(load: Load) -> None:
    """The commented ones of keys, tiers and preview, as a reader would take them into use."""
    lines = (ROOT / "models.yaml").read_text().splitlines()
    shown: list[str] = []
    for start in ("  # api_keys:", "# service_tiers:", "# preview:"):
        first = next(number for number, line in enumerate(lines) if line.startswith(start))
        indent = start[: start.index("#")]
        shown += ["server:"] if indent else []
        for line in lines[first:]:
            if not line.startswith(f"{indent}# "):
                break
            shown.append(indent + line.removeprefix(f"{indent}# "))
    config = load(FAKE.replace("  m:", "  fast:") + "\n".join(shown), TWOSPEED_API_KEY="0123456789abcdef")
    assert [key.name for key in config.server.api_keys] == ["laptop", "ci"]
    assert (config.service_tiers.ultrafast.seats, config.preview.ultrafast) == (2, ["laptop"])


def test_a_draft_is_another_model_by_name_or_alias_and_off_by_default(load: Load) -> None:
    config = load(FAKE + "  n: {backend: fake, aliases: [small]}\n  o: {backend: fake, draft: {model: small}}\n")
    assert config.models["n"].draft is None
    draft = config.models["o"].draft
    assert draft is not None
    assert (config.resolve(draft.model), draft.tokens) == ("n", 8)
