"""Chat formats by name and by place: found, and refused before anything starts."""

from pathlib import Path

import pytest

import agentrl.envs.search_r1
from agentrl.cli import train
from agentrl.envs.chat_formats import open_chat_format
from agentrl.errors import ConfigError
from agentrl.tokens.formats.load import FORMATS
from agentrl.tokens.formats.qwen import QwenFormat

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
OWN = """
from agentrl.tokens.formats.chatml import ChatML
from agentrl.tokens.formats.qwen import QwenFormat

class Mine(QwenFormat):
    def _called(self, call):
        return f"CALL {call.name}"

class Eager(QwenFormat):
    def __init__(self, vocab, **more):
        raise RuntimeError("no time")

class Half:
    def parse(self, sampled):
        return None

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
    assert isinstance(open_chat_format(name, MODEL), FORMATS[name])


def test_a_tokenizer_that_lacks_the_marks_of_a_format_is_said() -> None:
    with pytest.raises(ConfigError, match="<think>"):
        open_chat_format("qwen3", MODEL)


def test_one_of_ones_own_is_taken_where_it_lies(own: Path) -> None:
    found = open_chat_format("own.py:Mine", MODEL)
    assert isinstance(found, QwenFormat)
    assert type(found).__name__ == "Mine"
    assert train.main(["--chat-format", "own.py:Mine", "--dry-run"], "train_async") == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen4", "there is no chat format 'qwen4'; did you mean 'qwen"),
        ("own.py:Nine", "has no 'Nine'; did you mean 'Mine'"),
        ("own.py:Half", "not a class with the methods of a ChatFormat"),
        ("own.py:function", "not a class with the methods of a ChatFormat"),
        ("own.py:Eager", r"cannot be made: RuntimeError: no time \(own.py:11\); it is called with"),
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
