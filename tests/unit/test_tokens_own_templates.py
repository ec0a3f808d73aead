"""`--chat-template` from a directory or a file: what is taken, and what is refused with words."""

import json
import os
import shutil
from pathlib import Path

import pytest

import agentrl.envs.search_r1
from agentrl.cli import train
from agentrl.config.edited import digests
from agentrl.config.resolve import parse
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.errors import ConfigError, EnvError
from agentrl.tokens import Message, ToolCall, Vocab
from agentrl.tokens.template import ChatTemplate
from agentrl.tokens.templates.chat import TemplateFormat
from agentrl.tokens.templates.load import OWN, OwnTemplate, load_template
from tests.conftest import make_tokenizer_json

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' + (begun or '') }}{% endif %}
"""
#: Drops all turns but the last, as some do to save room.
FORGETS = CHATML.replace("in messages %}", "in messages[-2:] %}")
CALLS = """
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- if message.tool_calls %}
        {{- 'OPEN' }}
        {%- for call in message.tool_calls %}{{ SHOWN }}{% endfor %}
        {{- 'CLOSE' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def made(source: str) -> TemplateFormat:
    return TemplateFormat(Vocab(make_tokenizer_json()), ChatTemplate(source, place="T"))


def of_calls(shown: str, opened: str = "<tool_call>", closed: str = "</tool_call>") -> str:
    return CALLS.replace("OPEN", opened).replace("CLOSE", closed).replace("SHOWN", shown)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    return tmp_path


def test_a_template_of_the_model_and_one_in_a_file_are_taken(model: Path) -> None:
    path = model / "other.jinja"
    path.write_text(CHATML.replace("message.content", "'=' + message.content"))
    for place, wanted in ((OWN, "<|im_start|>user\nA"), (str(path), "<|im_start|>user\n=A")):
        chat = load_template(OwnTemplate(place), model)
        spans = chat.open_prompt([Message.user("A")])
        text = chat.vocab.decode([id_ for span in spans for id_ in span.ids])
        assert text == f"{wanted}<|im_end|>\n<|im_start|>assistant\n"
    ends = {chat.vocab.control[text] for text in ("<|im_end|>", "<|endoftext|>", "<|im_start|>")}
    assert set(chat.stop_ids) == ends


def test_what_ends_a_turn_is_read_in_the_generation_config_too(model: Path) -> None:
    control = Vocab.from_file(model).control
    other = next(text for text in control if text not in CHATML and text != "<|endoftext|>")
    told = {"eos_token_id": [control[other]]}
    (model / "generation_config.json").write_text(json.dumps(told))
    assert control[other] in load_template(OwnTemplate(OWN), model).stop_ids


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (FORGETS, "does not only append: of a turn that user has answered .* here, .* there"),
        (CHATML.replace("{{ '<|im_start|>assistant", "{{ 'assistant"), "how a turn was opened"),
        (CHATML.replace("message.content", "'x'"), "does not show what the assistant says"),
        (CHATML.replace("<|im_end|>", "").replace("<|im_start|>", "#"), "opens no turn|ends no"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{{ ''.__class__.x }}", "goes beyond its sandbox"),
        ("{% if", "is no chat template"),
    ],
)
def test_what_is_none_is_refused_with_its_name(model: Path, source: str, said: str) -> None:
    (model / "chat_template.jinja").write_text(source)
    with pytest.raises(ConfigError, match=f"^the chat template of .*{said}"):
        load_template(OwnTemplate(OWN), model)


def test_where_nobody_answers_a_template_may_forget(model: Path) -> None:
    (model / "chat_template.jinja").write_text(FORGETS)
    chat = load_template(OwnTemplate(OWN, is_one_turn=True), model)
    assert chat.open_prompt([Message.user("A")])


def test_a_fifo_is_no_template_and_nobody_waits_for_it(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.jinja")
    with pytest.raises(ConfigError, match=r"t\.jinja is a FIFO; it wants own or a file"):
        load_template(OwnTemplate(str(tmp_path / "t.jinja")), model)


def test_a_file_that_is_not_there_is_said(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read --chat-template no\.jinja.*own or a file"):
        load_template(OwnTemplate("no.jinja"), model)


@pytest.mark.parametrize(
    "source",
    [
        of_calls("call.function | tojson"),
        of_calls("[call.function] | tojson") + "{# one call #}",
        of_calls("call | tojson"),
        of_calls("call.function.name + ' ' + (call.function.arguments | tojson) + ';'"),
        of_calls("call.function.name + '\\n' + (call.function.arguments | tojson)"),
        of_calls(
            "'{\"n\": \"' + call.function.name + '\", \"a\": ' + call.function.arguments + '}'"
        ),
        of_calls(
            "call.function.name}}{% for k, v in call.function.arguments | items %}{{ '<k>' ~ k ~ "
            "'<v>' ~ (v if v is string else v | tojson) ~ '</v>' }}{% endfor %}{{ '!'"
        ),
    ],
)
def test_calls_are_learnt_from_what_a_template_writes(source: str) -> None:
    chat = made(source)
    assert chat.lacks_calls == ""
    call = ToolCall("call_2_0", "find", b'{"a": "b c", "n": 3}')
    turn = chat.parse(chat.write("Well.", [call]), index=2, tools=["find"])
    assert (turn.text, turn.parse_error) == ("Well.", None)
    (found,) = turn.tool_calls
    assert (found.id, found.name, json.loads(found.arguments)) == (
        *("call_2_0", "find"),
        {"a": "b c", "n": 3},
    )
    begun = chat.parse(chat.vocab.encode_trusted('<tool_call>{"name": "fi<|im_end|>'))
    assert begun.tool_calls == []
    assert "write a call as <tool_call>" in str(begun.parse_error)


def test_calls_that_cannot_be_learnt_are_refused_where_there_are_tools() -> None:
    chat = made(of_calls("call.id + (call.function.arguments | tojson)"))
    assert "does not show the names of calls" in chat.lacks_calls
    chat = made(of_calls("call.function.name"))
    assert "in a way that cannot be learnt from it: '<tool_call>looksee" in chat.lacks_calls
    tool = {"type": "function", "function": {"name": "find", "parameters": {}}}
    with pytest.raises(EnvError, match="no way to call them"):
        chat.open_prompt([Message.user("A")], [tool])
    with pytest.raises(EnvError, match="no way to write calls"):
        chat.write("", [ToolCall("", "find", b"{}")])
    assert chat.parse(chat.vocab.encode_trusted("<tool_call>")).tool_calls == []


def test_a_run_takes_the_template_in_the_place_of_a_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(CHATML)
    config = parse(["--chat-template", str(path)], "train_async").config
    assert chat_format_of(config) == OwnTemplate(str(path))
    assert isinstance(open_chat_format(chat_format_of(config), MODEL), TemplateFormat)
    assert f"--chat-template {path}" in digests(config)
    assert train.main(["--chat-template", str(path), "--dry-run"], "train_async") == 0
    assert "a prompt that has tools will be refused" in capsys.readouterr().out
    path.write_text(FORGETS)
    assert train.main(["--chat-template", str(path), "--dry-run"], "train_async") == 2
    assert "does not only append" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--chat-template own --chat-format qwen3", "--chat-template says how turns are written"),
        ('--apply-chat-template-kwargs {"k":1}', "give --chat-template own as well"),
    ],
)
def test_one_of_the_two_says_how_turns_are_written(argv: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(argv.split(), "train_async")
