"""Whether the prompt that `reset` gives fits the model, before anything starts.

    that of the first task fits            nothing more is tried
    it does not, and that of a later does  a note: groups of such tasks are filtered
    none of the first TASKS fits           refused: no iteration would come of them

Looked at is an Env of the user's; the rows of the others are compared as such (`prompts.py`). A
task that cannot be tried counts neither way: the run says what is wrong with it.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.config.run import RunConfig
from agentrl.envs.chat_formats import chat_format_of, open_chat_format
from agentrl.envs.check.dry_reset import LIMIT_S, context_of, dry_reset, make_env
from agentrl.envs.check.prompts import room_of
from agentrl.envs.check.watch import (
    ERRORS,
    BlockedError,
    MethodWatch,
    OverdueError,
    UserInterruptError,
    run_watched,
)
from agentrl.envs.env import Env
from agentrl.envs.prompt_lengths import UNBOUNDED, PromptRoom, has_prompts
from agentrl.envs.travel import arrived
from agentrl.errors import AgentRLError, ConfigError, TextTooLongError
from agentrl.model_dir import CONFIG, TOKENIZER
from agentrl.paths import kind_of
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import Task, TaskSource

__all__ = ["FirstPrompts", "first_prompts", "more_tasks", "open_first_prompts"]

#: Tasks that are tried where the first does not fit.
TASKS = 8
#: A prompt of more tokens need not be counted to the end.
_MAX_TOKENS = 100_000


class FirstPrompts:
    """The sizes of the prompts that were looked at, in tokens, by task. `room`: what fits."""

    def __init__(self, room: PromptRoom, chat: ChatFormat) -> None:
        self.room = room
        self._chat = chat
        self._sizes: dict[str, int] = {}

    def look(self, env: Env, task: Task, prompt: Sequence[Any]) -> None:
        """What `env` gave for `task`."""
        tools = [*(tool.spec.to_openai() for tool in env.tools.values()), *env.schemas]
        try:
            size = sum(len(span.ids) for span in self._chat.open_prompt(list(prompt), tools))
        except TextTooLongError:
            size = UNBOUNDED
        self._sizes[task.id] = size

    @property
    def all_too_long(self) -> bool:
        """Whether something was looked at, and nothing fits."""
        sizes = self._sizes.values()
        return bool(sizes) and min(sizes) > self.room.tokens

    def problem(self) -> str:
        """How they are too long, where all are."""
        longest = max(self._sizes, key=lambda task: self._sizes[task])
        size, num = self._sizes[longest], len(self._sizes)
        first = "task" if num == 1 else f"{num} tasks"
        has = f"{size} tokens" if size < UNBOUNDED else "far more"
        return (
            f"no first prompt of the first {first} fits {self.room.tokens} tokens "
            f"({self.room.flag}): that of {longest} has {has}; shorten what reset returns, or give "
            "it more room"
        )

    def note(self) -> str | None:
        """How many of those that were tried are too long, if any is."""
        long = {task: size for task, size in self._sizes.items() if size > self.room.tokens}
        if not long:
            return None
        longest = max(long, key=lambda task: long[task])
        has = f" with {long[longest]}" if long[longest] < UNBOUNDED else ""
        return (
            f"{len(long)} of the first {len(self._sizes)} tasks have a first prompt of more than "
            f"{self.room.tokens} tokens ({self.room.flag}), and their groups will be filtered; the "
            f"longest is {longest}{has}"
        )


def open_first_prompts(config: RunConfig) -> FirstPrompts:
    """What compares prompts with the model of `config`. Raises AgentRLError for one that cannot be
    read."""
    room, _ = room_of(config)
    bound = max(room.tokens, _MAX_TOKENS)
    chat = open_chat_format(chat_format_of(config), str(config.hf_checkpoint), max_tokens=bound)
    return FirstPrompts(room, chat)


def first_prompts(config: RunConfig) -> FirstPrompts | None:
    """The same for a run; None where its model is not here or cannot be read, which is told
    elsewhere, where it plays no training episodes, or where rows are compared as such."""
    if config.mode != "policy" or config.hf_checkpoint is None or has_prompts(config):
        return None
    if any(kind_of(Path(config.hf_checkpoint, name)) != "a file" for name in (CONFIG, TOKENIZER)):
        return None
    try:
        return open_first_prompts(config)
    except AgentRLError:
        return None


def more_tasks(
    found: FirstPrompts, config: RunConfig, source: TaskSource, cls: type[Env]
) -> str | None:
    """Try the tasks behind the first, which does not fit; a note where one of them does. Raises
    ConfigError where none does."""
    for task in _first(source)[1:]:
        with suppress(ConfigError):
            env = make_env(cls, config.env_args)
            Env.bind(env, context_of(config))
            dry_reset(env, arrived(task)[0], seed=config.rollout_seed, look=found.look)
    if found.all_too_long:
        raise ConfigError(f"{cls.__qualname__}: {found.problem()}")
    return found.note()


def _first(source: TaskSource) -> list[Task]:
    """The first tasks of a source, as far as they come in time."""
    found: list[Task] = []

    async def read(watch: MethodWatch) -> None:
        tasks = source.tasks(0)
        with watch.phase("tasks", LIMIT_S):
            async for task in tasks:
                found.append(task)
                if len(found) == TASKS:
                    break
        if isinstance(tasks, AsyncGenerator):
            await tasks.aclose()

    with suppress(*ERRORS, OverdueError, BlockedError, UserInterruptError):
        run_watched(read)
    return found
