"""Chat formats by name, as environments have names: `user_code.py` has the rules.

A format is a class that is made as `ChatML` is, and has the methods of `ChatFormat`. Packages
announce theirs under `agentrl.formats`.
"""

from pathlib import Path
from typing import cast

from agentrl.envs.format_trial import try_format
from agentrl.errors import AgentRLError, ConfigError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import FORMATS, MakesFormat, make_format
from agentrl.user_code import Kind, load
from agentrl.user_traceback import words_of

__all__ = ["GROUP", "open_chat_format"]

#: Entry point group under which packages announce chat formats.
GROUP = "agentrl.formats"

_METHODS = ("open_prompt", "observe", "remembered", "write", "parse")
_ATTRIBUTES = ("vocab", "assistant_opener", "stop_ids")


def open_chat_format(
    name: str, model_dir: str | Path, *, max_tokens: int | None = None
) -> ChatFormat:
    """The chat format of a name, `pkg.module:Class` or `path/to/file.py:Class` (`--chat-format`)
    for the model at `model_dir`; one that is not agentrl's own is tried. `max_tokens`: see `Vocab`.
    Raises ConfigError when there is none, when it cannot be made, and as `make_format` and
    `try_format`."""
    made = load(_KIND, name)
    try:
        chat = make_format(made, name, model_dir, max_tokens=max_tokens)
        lacks = [attribute for attribute in _ATTRIBUTES if not hasattr(chat, attribute)]
    except AgentRLError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"chat format {name} cannot be made: {words_of(error)}; it is called with the vocab, "
            "tools_in_prompt= and default_system="
        ) from error
    if lacks:
        raise ConfigError(f"chat format {name} has no {' and no '.join(lacks)} (docs/formats.md)")
    if name not in FORMATS:
        try_format(chat, name)
    return chat


def _format_of(value: object) -> MakesFormat | None:
    if not isinstance(value, type):
        return None
    lacks = [method for method in _METHODS if not callable(getattr(value, method, None))]
    return None if lacks else cast("MakesFormat", value)


_KIND: Kind[MakesFormat] = Kind(
    group=GROUP,
    noun="chat format",
    must_be="a class with the methods of a ChatFormat",
    write="one as docs/formats.md does",
    flag="--chat-format",
    take=_format_of,
    builtin={name: f"{made.__module__}:{made.__qualname__}" for name, made in FORMATS.items()},
)
