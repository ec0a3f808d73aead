"""`--rollout-max-prompt-len`: rows whose prompt is longer are left out as they are read; without it
those whose prompt leaves no room for a turn in `--rollout-max-context-len`.

As slime does: before the first iteration, so an epoch is the rows that are left. Looked at are the
environments for rows of a prompt and a label, whose `reset` reads a row and nothing else. A row
that gives no prompt stays, and fails its group. What an Env of another kind begins with is known
when an episode does: its group is then `filtered`.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import anyio
import anyio.lowlevel

from agentrl.config.conditions import GENERATE, ROW_ENVS
from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.check.dry_reset import make_env
from agentrl.envs.env import Env
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.sources import RowSource
from agentrl.errors import ConfigError, EnvError, TextTooLongError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import Task, TaskSource

__all__ = [
    "UNBOUNDED",
    "PromptRoom",
    "has_prompts",
    "leave_out_long_prompts",
    "prompt_size",
    "room_for_prompts",
]

#: Of a prompt that is too long to be counted.
UNBOUNDED = 2**31


class PromptRoom(NamedTuple):
    """Tokens that the prompt of a row may have, and the flag that says so."""

    tokens: int
    flag: str


def room_for_prompts(config: RunConfig) -> PromptRoom | None:
    """The bound beyond which rows are left out; None: no flag gives one."""
    if config.rollout_max_prompt_len is not None:
        return PromptRoom(config.rollout_max_prompt_len, "--rollout-max-prompt-len")
    if config.rollout_max_context_len is not None:
        return PromptRoom(config.rollout_max_context_len - 2, "--rollout-max-context-len")
    return None


def has_prompts(config: RunConfig) -> bool:
    """Whether the rows of a run say by themselves how long their prompts are."""
    is_read = config.env in ROW_ENVS and config.env != GENERATE  # a function writes its own prompt
    has_rows = config.prompt_data is not None and not config.has_data_source
    return config.mode == "policy" and has_rows and is_read


def leave_out_long_prompts(
    config: RunConfig, source: TaskSource, env_class: type[Env]
) -> Iterator[str]:
    """Leave out of `source` what is longer than a flag says; a note where that are some. Raises
    ConfigError when none is left, and DataError for a row that cannot be read."""
    room = room_for_prompts(config)
    if room is None or not has_prompts(config) or not isinstance(source, RowSource):
        return
    env = make_env(env_class, config.env_args)
    chat = open_chat_format(chat_format_of(config), str(config.hf_checkpoint))
    assert isinstance(env, SingleTurnEnv)
    num = len(source)
    fits = anyio.run(_fitting, source.first(num), env, chat, room.tokens)
    if not fits:
        raise ConfigError(
            f"none of the {num} prompts of --prompt-data has {room.tokens} tokens or less "
            f"({room.flag}); raise it"
        )
    if len(fits) < num:
        source.keep(fits)
        yield (
            f"{num - len(fits)} of {num} rows of --prompt-data are left out: their prompts have "
            f"more than {room.tokens} tokens ({room.flag})"
        )


async def _fitting(
    tasks: Iterable[Task], env: SingleTurnEnv, chat: ChatFormat, room: int
) -> list[int]:
    found = []
    for index, task in enumerate(tasks):
        try:
            size = prompt_size(env, task, chat)
        except EnvError:
            size = 0
        if size <= room:
            found.append(index)
        await anyio.lowlevel.checkpoint()  # a signal may end it
    return found


def prompt_size(env: SingleTurnEnv, task: Task, chat: ChatFormat) -> int:
    """Tokens of a row's prompt, without the tools of a server that is not asked here. Raises
    EnvError for a row that gives none."""
    messages = env.take(task.row)
    tools = [*(tool.spec.to_openai() for tool in env.tools.values()), *env.schemas]
    try:
        return sum(len(span.ids) for span in chat.open_prompt(messages, tools))
    except TextTooLongError:
        return UNBOUNDED
