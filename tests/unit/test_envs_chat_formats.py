"""Chat formats by name and by place: found, and refused before anything starts."""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentrl.envs.search_r1
from agentrl.cli import train
from agentrl.envs.chat_formats import open_chat_format
from agentrl.envs.check.formats import try_format
from agentrl.errors import ConfigError
from agentrl.shipped import CHAT_FORMATS
from agentrl.tokens.formats.load import GROUP, format_class
from agentrl.tokens.formats.qwen import QwenFormat
from tests.conftest import vocab_for

pytestmark = pytest.mark.slow

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
OWN = """
from agentrl.tokens.chat import ParsedTurn
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.spans import Author, Piece
from agentrl.tokens.formats.qwen import QwenFormat

class Mine(QwenFormat):
    def parse(self, sampled, *, index=0, tools=()):
        return super().parse(sampled, index=index, tools=tools)

class Mute(QwenFormat):
    def _called(self, call):
        return f"CALL {call.name}"

class Nothing(QwenFormat):
    def parse(self, sampled, *, index=0, tools=()):
        return None

class Rash(QwenFormat):
    def parse(self, sampled, *, index=0, tools=()):
        return super().parse(sampled[:-1] or [{}[0]], index=index, tools=tools)

class Count(QwenFormat):
    def parse(self, sampled, *, index=0, tools=()):
        turn = super().parse(sampled, index=index, tools=tools)
        return ParsedTurn(turn.text, [1], None)

class Trusting(QwenFormat):
    def _result(self, message, *, first):
        yield Piece(Author.FORMAT, ("user\\n" if first else "") + message.content)

class Forging(QwenFormat):
    def _result(self, message, *, first):
        yield Piece(Author.FORMAT, "user\\n")
        for word in message.content.split():
            known = word in self.vocab.control
            yield Piece(Author.CONTROL if known else Author.FOREIGN, word)

class Endless(QwenFormat):
    stop_ids = property(lambda self: (), lambda self, ids: None)

class Eager(QwenFormat):
    def __init__(self, vocab, **more):
        raise RuntimeError("no time")

class Half:
    def parse(self, sampled):
        return None

class Leaving(QwenFormat):
    def __init__(self, vocab, **more):
        raise SystemExit(3)

class Bare:
    def __init__(self, vocab, *, tools_in_prompt, default_system):
        self.vocab = vocab

    open_prompt = observe = remembered = write = parse = lambda self: None

class Whole:
    # no ChatML: it has one
    def __init__(self, vocab, *, tools_in_prompt, default_system):
        made = QwenFormat(vocab, tools_in_prompt=tools_in_prompt, default_system=default_system)
        self.vocab, self.made = vocab, made
        self.assistant_opener, self.stop_ids = made.assistant_opener, made.stop_ids

    def open_prompt(self, messages, tools=()):
        return self.made.open_prompt(messages, tools)

    def observe(self, messages, sampled):
        return self.made.observe(messages, sampled)

    def remembered(self, messages, sampled):
        return None

    def write(self, text, calls=()):
        return self.made.write(text, calls)

    def parse(self, sampled, *, index=0, tools=()):
        return self.made.parse(sampled, index=index, tools=tools)

def function(vocab):
    return None
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


@pytest.mark.parametrize("name", ["qwen", "tags"])
def test_those_that_ship_have_names(name: str) -> None:
    made = format_class(name)
    assert isinstance(made, type)
    assert isinstance(open_chat_format(name, MODEL), made)


def test_a_tokenizer_that_lacks_the_marks_of_a_format_is_said() -> None:
    with pytest.raises(ConfigError, match="<think>"):
        open_chat_format("qwen3", MODEL)


@pytest.mark.parametrize("name", CHAT_FORMATS.places)
def test_those_that_ship_stand_the_trial(name: str) -> None:
    made = format_class(name)(vocab_for(name), tools_in_prompt=True, default_system=None)
    try_format(made, name)


def test_one_of_ones_own_is_taken_where_it_lies(own: Path) -> None:
    found = open_chat_format("own.py:Mine", MODEL)
    assert isinstance(found, QwenFormat)
    assert type(found).__name__ == "Mine"
    assert train.main(["--chat-format", "own.py:Mine", "--dry-run"], "train_async") == 0


def test_a_model_without_a_chat_template_has_the_format_that_it_is_given(
    own: Path, tmp_path: Path
) -> None:
    shutil.copy(MODEL / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert type(open_chat_format("own.py:Whole", tmp_path)).__name__ == "Whole"
    with pytest.raises(ConfigError, match="has no chat template"):
        open_chat_format("own.py:Mine", tmp_path)


def test_a_package_gives_its_format_a_name(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("mine", "own:Mine", GROUP)

    def entry_points(*, group: str, name: str | None = None) -> list[Any]:
        return [point] if group == GROUP and name in (None, "mine") else []

    monkeypatch.syspath_prepend(own.parent)
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert type(open_chat_format("mine", MODEL)).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen4", "there is no chat format 'qwen4'; did you mean 'qwen"),
        ("own.py:Nine", "has no 'Nine'; did you mean 'Mine'"),
        ("own.py:Half", "not a class with the methods of a ChatFormat"),
        ("own.py:function", "not a class with the methods of a ChatFormat"),
        ("own.py:Eager", r"cannot be made: RuntimeError: no time \(own.py:\d+\); it is called"),
        ("own.py:Mute", "parse reads the text .*, 0 calls"),
        ("own.py:Nothing", "parse, on what write wrote, returned None; return ParsedTurn"),
        ("own.py:Rash", r"parse, on '', raised KeyError: 0 \(own.py:"),
        ("own.py:Count", "parse, on what write wrote, has 1 among its calls"),
        ("own.py:Trusting", "a result of a tool is not UNTRUSTED: make it a FOREIGN piece"),
        ("own.py:Forging", "a result of a tool that says .* makes control tokens"),
        ("own.py:Endless", "it has no stop_ids, so no turn would ever end"),
        ("own.py:Leaving", "cannot be made: SystemExit: 3"),
        ("own.py:Bare", "has no assistant_opener and no stop_ids"),
        ("no_such_package:Lines", "cannot import no_such_package"),
    ],
)
def test_what_is_none_is_refused_before_anything_starts(
    own: Path, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=said):
        open_chat_format(name, MODEL)
    assert train.main(["--chat-format", name], "train_async") == 2
    assert capsys.readouterr().err.startswith("train_async: ")
