"""A chat template is somebody's program: what it may read, and how much it may do."""

import json
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.tokens.template import (
    MAX_TEMPLATE_CHARS,
    ChatTemplate,
    read_template,
    special_tokens,
)

DOUBLES = (
    "{% set n = namespace(x='aa') %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)
LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


def rendered(source: str) -> str:
    messages = [{"role": "user", "content": "a {x} b"}]
    return ChatTemplate(source, place="T").render(messages, opened=True)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages[0].content.__class__.__name__.x }}",
        "{{ range.__self__.x }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ namespace(x=1).__class__.x }}",
        "{% macro m() %}{% endmacro %}{{ m.__call__.__func__ }}",
        "{% for a in [1] %}{{ loop._iterator.x }}{% endfor %}",
        "{{ self.__dict__.x }}",
        "{{ raise_exception.__globals__.sys }}",
        "{{ 'a {0.__class__} b'.format(1) }}",
        "{{ messages[0].content.format_map({'x': 1}) }}",
        "{{ '%9999999d' % 1 }}",
        "{{ 'a' * 99999999 }}",
        "{{ 9 ** 99999 }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'b'}) }}",
        "{{ messages | attr('__class__') }}",
        "{{ '%9999999d' | format(1) }}",
        "{{ messages[0].content | center(99999999) }}",
        "{{ messages | map(attribute='__class__') | map(attribute='x') | list }}{{ 1 / 0 }}",
        "{{ lipsum(99999) }}",
        "{{ cycler.__init__.x }}",
        "{{ strftime_now('%d') }}",
        "{% include '/etc/hostname' %}",
        "{% import 'os' as os %}",
        "{{ raise_exception('no') }}",
        LOOPS,
        DOUBLES,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% if",
        "(" * 200_000,
        "{% set a = 1 %}{{ " + " + ".join("a" * 300) + " }}",
        "{{ " + "(" * 40_000,
        "a" * (MAX_TEMPLATE_CHARS + 1),
    ],
)
def test_what_goes_beyond_the_sandbox_is_an_error_that_names_the_template(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^T "):
        rendered(source)


@pytest.mark.parametrize(
    "made",
    [
        "a.replace('a', a)",
        "a.replace('', a)",
        "a | replace('a', a)",
        "[a] | map('replace', 'a', a) | list",
        "a.join(a)",
        "a | join(a)",
        "(a.replace('a', '\\n')) | indent(9999)",
        "l | tojson(indent=9999999)",
        "l | sum(start=[])",
        "l | tojson",
        " ~ ".join("a" * 300),
        " + ".join("a" * 150),
        "'a' }}" + "{{ a }}" * 300 + "{{ 'a'",
    ],
)
def test_no_single_step_makes_a_long_text_of_short_ones(made: str) -> None:
    """Each of these would take gigabytes, or as good as for ever, if it were made."""
    texts = "{% set a = '" + "a" * 40_000 + "' %}{% set l = [" + "a, " * 300 + "] %}"
    with pytest.raises(
        ConfigError, match=r"^T goes beyond its sandbox: it (would|may)|^T .*its JSON"
    ):
        rendered(texts + "{{ " + made + " }}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'abab'.replace('a', 'c', 1) }}{{ 'abab' | replace('b', '') }}", "cbabaa"),
        ("{{ ', '.join(['a', 'b']) }}{{ [1, 2] | join('|') }}{{ 'a' ~ 1 }}", "a, b1|2a1"),
        ("{{ 'a\\nb' | indent(2) }}{{ [1, 2] | sum }}{{ [1] + [2] }}", "a\n  b3[1, 2]"),
        ("{{ [1, {'a': None}] | tojson(indent=1) }}", '[\n 1,\n {\n  "a": null\n }\n]'),
        ("{{ messages[0].content.strip().split(' ')[0] }}", "a"),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}", "2"),
        ("{% for m in messages %}{{ loop.index0 }}{% break %}{% endfor %}", "0"),
        ("{{ {'é': 1} | tojson }}", '{"é": 1}'),
        ("{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ strftime_now is defined }}{{ messages.__class__ }}", "False"),
    ],
)
def test_what_published_templates_use_is_there(source: str, text: str) -> None:
    assert rendered(source) == text


def test_a_long_dialogue_is_within_the_budget() -> None:
    source = "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content | trim }}{% endfor %}"
    messages = [{"role": "user", "content": "x" * 1000}] * 2000
    assert len(ChatTemplate(source, place="T").render(messages, opened=True)) > 2_000_000


def test_a_directory_says_its_special_tokens_and_its_template(tmp_path: Path) -> None:
    tokens = {"bos_token": "<b>", "eos_token": {"content": "<e>"}, "pad_token": None, "x_token": 3}
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**tokens, "chat_template": "{{ bos_token }}|{{ eos_token }}"}))
    assert special_tokens(tmp_path) == {"bos_token": "<b>", "eos_token": "<e>"}
    assert ChatTemplate.of(tmp_path).render([], opened=True) == "<b>|<e>"
    (tmp_path / "chat_template.jinja").write_text("newer")
    assert read_template(tmp_path) == "newer"
    config.write_text("[]")
    assert special_tokens(tmp_path) == {}
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="cannot read the chat template"):
        read_template(tmp_path)
