"""The environment that a launch script gives to its program: what it exports, what stands before
the command, and the `env_vars` of Ray's runtime environment, which lie over both.

Each variable is a word as `--env-vars` takes it: NAME=VALUE, where a part of the value that only a
run can tell stays for a shell to fill in; or NAME alone, where nothing of it is known.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from agentrl.config.shell_values import Argument, Fields, ShellPiece, Value, plain
from agentrl.config.shell_words import NAME

__all__ = ["UnreadEnvironmentError", "environment_of"]

_FLAG = "--runtime-env-json"
#: What stands in a JSON text for a piece that is not known: characters that nobody writes.
_MARK = re.compile("\ue000(\\d+)\ue001")


class UnreadEnvironmentError(Exception):
    """What is given to Ray as an environment is no JSON object, as far as it is known."""


def environment_of(exported: Mapping[str, object], before: Iterable[Value]) -> dict[str, Argument]:
    """The words by name. `exported`: values of variables, of which those that are no plain value
    are not known; `before`: the words before the program. Raises UnreadEnvironmentError."""
    found = {
        name: _word(name, value) if isinstance(value, tuple) else Argument(name)
        for name, value in exported.items()
    }
    for name, value in _runtime_env(list(before)):
        found[name] = _word(name, value)
    return found


def _word(name: str, value: Value) -> Argument:
    fields = Fields()
    fields.add(plain(f"{name}="), quoted=True)
    fields.add(value, quoted=True)
    (word,) = fields.arguments()
    return word


def _runtime_env(words: list[Value]) -> Iterator[tuple[str, Value]]:
    texts = [_marked(word) for word in words]
    for index, text in enumerate(texts):
        flag, equals, json = text.partition("=")
        if flag != _FLAG:
            continue
        at = index if equals else index + 1
        json = json if equals else "".join(texts[at : at + 1])
        for name, value in _env_vars(json).items():
            if NAME.fullmatch(name):
                yield name, tuple(_pieces(str(value), words[at]))


def _env_vars(json: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(json, type=dict[str, Any]).get("env_vars", {})
    except msgspec.MsgspecError:
        raise UnreadEnvironmentError from None
    if not isinstance(found, dict):
        raise UnreadEnvironmentError
    return found


def _marked(word: Value) -> str:
    """The text of a word, with marks for the pieces that are not known."""
    pieces = enumerate(word)
    return "".join(p.text if p.known else f"\ue000{index}\ue001" for index, p in pieces)


def _pieces(text: str, word: Value) -> Iterator[ShellPiece]:
    for index, part in enumerate(_MARK.split(text)):
        if index % 2:
            yield word[int(part)]
        elif part:
            yield ShellPiece(part)
