"""The first rows of --prompt-data as prompts, before anything starts: what a run would only say row
by row.

Looked at are the environments for rows of a prompt and a label, whose `reset` reads a row and
nothing else. A row that does not fit --rollout-max-prompt-len will be left out, and one that does
not fit the context has its group filtered: both are counted here and told, and how many rows were
looked at. Refused: rows of which none fits. Rows that cannot be played are refused elsewhere
(`rows.py`).
"""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.config.mixture import parts_of
from agentrl.config.model import read_model
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.check.dry_reset import make_env
from agentrl.envs.prompt_lengths import (
    UNBOUNDED,
    PromptRoom,
    has_prompts,
    prompt_size,
    room_for_prompts,
)
from agentrl.envs.registry import load_env
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.sources import RowSource
from agentrl.envs.tasks import open_source
from agentrl.errors import AgentRLError, ConfigError, EnvError
from agentrl.tokens.formats.base import ChatFormat

__all__ = ["ROWS", "check_prompts", "room_of"]

#: Rows that are looked at, and seconds after which no further one is.
ROWS, LIMIT_S = 1000, 10.0


class _Seen(msgspec.Struct):
    """What the rows so far have shown. `longest`: tokens, and the place of the row."""

    num_rows: int = 0
    num_long: int = 0
    longest: tuple[int, str] = (0, "")


def check_prompts(config: RunConfig) -> list[str]:
    """Notes on the first rows of `config`, or of each part of its mixture. Raises ConfigError where
    no prompt of them fits."""
    notes: list[str] = []
    for part in parts_of(config):
        try:
            notes += [f"{part.whose}: {note}" for note in check_prompts(part.config)]
        except ConfigError as error:
            raise ConfigError(f"{part.whose}: {error}") from error
    if not has_prompts(config) or config.env is None:
        return notes
    room, leaves_out = room_of(config)
    try:
        cls = load_env(config.env)
        source, env = open_source(config, cls), make_env(cls, config.env_args)
        chat = open_chat_format(chat_format_of(config), str(config.hf_checkpoint))
    except AgentRLError:
        return []  # the checks of each say it
    assert isinstance(source, RowSource)
    assert isinstance(env, SingleTurnEnv)
    seen = _look(source, env, chat, room.tokens)
    is_all = not leaves_out or seen.num_rows == len(source)
    if seen.num_long == seen.num_rows > 0 and is_all:
        raise ConfigError(
            f"no prompt of the first {seen.num_rows} rows of --prompt-data fits {room.tokens} "
            f"tokens ({room.flag}): the shortest rows have to, or raise it; {_longest(seen)}"
        )
    return [*_notes(seen, room, len(source), leaves_out=leaves_out)]


def room_of(config: RunConfig) -> tuple[PromptRoom, bool]:
    """What bounds a first prompt, and whether longer ones are left out as they are read."""
    if (room := room_for_prompts(config)) is not None:
        return room, True
    model = read_model(Path(str(config.hf_checkpoint))).max_context or 2**31
    return PromptRoom(model - 2, "what the model's context leaves"), False


def _look(source: RowSource, env: SingleTurnEnv, chat: ChatFormat, room: int) -> _Seen:
    seen, until = _Seen(), time.monotonic() + LIMIT_S
    for index, task in enumerate(source.first(ROWS)):
        try:
            size = prompt_size(env, task, chat)
        except EnvError:
            size = 0
        seen.num_rows += 1
        seen.num_long += size > room
        if size > seen.longest[0]:
            seen.longest = size, source.where(index)
        if time.monotonic() > until:
            break
    return seen


def _notes(seen: _Seen, room: PromptRoom, total: int, *, leaves_out: bool) -> Iterator[str]:
    of = f"of the first {seen.num_rows} rows of --prompt-data"
    what = "will be left out" if leaves_out else "their groups will be filtered"
    if seen.num_long:
        yield (
            f"{seen.num_long} {of} have a prompt of more than {room.tokens} tokens ({room.flag}), "
            f"and {what}; {_longest(seen)}"
        )
    if seen.num_rows < total:
        yield (
            f"the first {seen.num_rows} of {total} rows of --prompt-data were looked at as "
            f"prompts; later ones may be too long, and then {what}"
        )


def _longest(seen: _Seen) -> str:
    size, place = seen.longest
    return f"the longest is {place}" + (f" with {size}" if size < UNBOUNDED else "")
