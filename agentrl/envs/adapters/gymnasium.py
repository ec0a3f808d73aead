"""`gymnasium`: an environment of Gymnasium whose observations and actions are told in words.

    reset: make -> reset(seed)     step: the turn's last words -> action -> step     close: close

Its code runs in threads, one call at a time; one that does not return when its episode is over is
left behind there. Reward, terminated and truncated are its own. A turn that names no action is told
so, and nothing else happens. The package is imported here and nowhere else.
"""

import functools
import importlib
import random
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import anyio.to_thread
import msgspec

from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import ConfigError, EnvError
from agentrl.tools.tool import ToolError
from agentrl.types import Task, TaskSource
from agentrl.user_traceback import words_of

try:
    import gymnasium
except ImportError as error:
    raise ConfigError(f"it needs Gymnasium: pip install 'agentrl[gymnasium]' ({error})") from error

__all__ = ["GymnasiumEnv"]

#: What may follow an action at the end of a turn.
_AFTER = " \t\r\n.!*`'\")]"
_MAX_SEED = 2**31

P = ParamSpec("P")
T = TypeVar("T")


class GymnasiumEnv(Env):
    """Plays the environment `id`, made with the keyword arguments `make`. As for Gymnasium itself,
    `module:Id` imports the module first, which registers it.

    `actions` names the actions of a discrete space in order (default: their numbers). `prompt` is
    said before the first observation. A row of the tasks may hold `seed` and `options` of the
    environment's reset: episodes of a group begin alike. Without tasks of your own there are
    endless ones, a seed each.

    Subclass it for more: `show` tells an observation, `read` finds the action in a text.
    """

    metrics = {"bad_actions": "Turns of an episode that name no action"}  # noqa: RUF012

    def __init__(
        self,
        *,
        id: str,
        make: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        prompt: str | None = None,
    ) -> None:
        super().__init__()
        _find(id)
        self.id = id
        self._make = dict(make or {})
        self._names = [str(name) for name in actions or ()]
        self._actions: dict[str, int] = {}
        self._prompt = prompt
        self._lock = threading.Lock()
        self._is_closed = False
        self._gym: gymnasium.Env[Any, Any] | None = None

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        """Endless tasks: each is a seed of the environment."""
        return _Seeds(str(args.get("id", cls.__name__)), seed)

    # ---- hooks ----

    def show(self, observation: Any) -> str:
        """An observation in words: by default what the environment renders as text, or else the
        text that it is, or else its numbers."""
        if self.gym.render_mode == "ansi":
            return str(self.gym.render())
        if isinstance(observation, str):
            return observation
        return msgspec.json.encode(observation, enc_hook=_plain).decode()

    def read(self, text: str) -> Any:
        """The action that `text` ends with. Raises ToolError, whose words the model reads."""
        if isinstance(self.gym.action_space, gymnasium.spaces.Text):
            return self._spelled(self.gym.action_space, text.strip())
        said = text.rstrip(_AFTER).casefold()
        for name, action in sorted(self._actions.items(), key=lambda pair: -len(pair[0])):
            before = said[-len(name) - 1 : -len(name)]
            if said.endswith(name) and not (before.isalnum() or before in ("_", "-", ".")):
                return action
        raise ToolError(f"that names no action; end your turn with one of {', '.join(self.names)}")

    @property
    def gym(self) -> "gymnasium.Env[Any, Any]":
        """The environment; there is one after `reset`."""
        assert self._gym is not None, "reset comes first"
        return self._gym

    @property
    def names(self) -> Sequence[str]:
        """What the actions of a discrete space are called."""
        return self._names

    # ---- an episode ----

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        begin = functools.partial(self._begin, task.get("seed", seed), task.get("options"))
        return [Message.user(await self._in_thread(begin))]

    async def step(self, turn: AssistantTurn) -> Step:
        try:
            action = self.read(turn.text)
        except ToolError as error:
            return Step(messages=[Message.user(str(error))], metrics={"bad_actions": 1.0})
        return await self._in_thread(self._act, action)

    async def close(self) -> None:
        await self._in_thread(self._end)

    # ---- in a thread ----

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def alone() -> T:
            with self._lock:
                return call(*args, **kwargs)

        return await anyio.to_thread.run_sync(alone, abandon_on_cancel=True)

    def _begin(self, seed: int, options: dict[str, Any] | None) -> str:
        if self._is_closed:
            raise EnvError(f"{self.id} was closed before it began")
        self._gym = gymnasium.make(self.id, **self._make)
        self._check_actions()
        observation, _ = self.gym.reset(seed=seed, options=options)
        prompt = self._prompt
        if prompt is None:
            how = f"one of {', '.join(self.names)}" if self.names else "it and nothing else"
            prompt = f"You act in {self.id}. End each turn with your action: {how}."
        return f"{prompt}\n\n{self.show(observation)}"

    def _act(self, action: Any) -> Step:
        observation, reward, terminated, truncated, _ = self.gym.step(action)
        return Step(
            messages=[Message.user(self.show(observation))],
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
        )

    def _end(self) -> None:
        self._is_closed = True
        if self._gym is not None:
            self._gym.close()
            self._gym = None

    # ---- actions ----

    def _check_actions(self) -> None:
        """Raises EnvError for actions that `read` cannot find, and for a wrong number of names."""
        space = self.gym.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            numbers = range(int(space.start), int(space.start + space.n))
            self._names = self._names or [str(number) for number in numbers]
            self._actions = dict(zip(map(str.casefold, self._names), numbers, strict=False))
            if len(self._names) != len(numbers) or len(self._actions) != len(numbers):
                raise EnvError(
                    f"{self.id} has {len(numbers)} actions; give each one name, not {self._names}"
                )
        elif not isinstance(space, gymnasium.spaces.Text) and type(self).read is GymnasiumEnv.read:
            raise EnvError(
                f"the actions of {self.id} are {space}; subclass GymnasiumEnv and define "
                "`def read(self, text)`, which makes one of a turn's text"
            )

    def _spelled(self, space: "gymnasium.spaces.Text", text: str) -> str:
        if not space.contains(text):
            raise ToolError(f"that is no action; write {space}")
        return text


def _find(id: str) -> None:
    """Raise ConfigError when there is no such environment."""
    module, colon, name = id.rpartition(":")
    if colon:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"Gymnasium has no environment {id!r}: cannot import {module}: {words_of(error)}"
            ) from error
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        hint = "" if colon else "; one of another package is `module:Id`"
        raise ConfigError(f"Gymnasium has no environment {id!r}: {error}{hint}") from error


class _Seeds:
    """Endless tasks of one environment, in an order that `seed` fixes. A `types.TaskSource`."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed = name, seed

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        while True:
            drawn = random.Random(f"{self._seed}/{cursor}").randrange(_MAX_SEED)
            yield Task(f"{self._name}:{cursor}", {"seed": drawn})
            cursor += 1


def _plain(value: Any) -> Any:
    """An array or a number of numpy's as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise EnvError(
        f"an observation is {type(value).__name__}; subclass GymnasiumEnv and define "
        "`def show(self, observation)`, which tells it in words"
    )
