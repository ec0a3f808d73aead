"""Chat formats by name and by place: found, and refused before anything starts."""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import pytest

import agentrl.envs.search_r1
from agentrl.cli import train
from agentrl.envs.chat_formats import GROUP, open_chat_format
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

class Leaving(QwenFormat):
    def __init__(self, vocab, **more):
        raise SystemExit(3)

class Bare:
    def __init__(self, vocab, *, tools_in_prompt, default_system):
        self.vocab = vocab

    open_prompt = observe = remembered = write = parse = lambda self: None

class Whole(Bare):
    assistant_opener, stop_ids = (), ()

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
        ("own.py:Eager", r"cannot be made: RuntimeError: no time \(own.py:11\); it is called with"),
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
