"""`Rollout`: an episode whose loop is the agent's own, and the decorator that makes one.

    NEW -> solve -> close

Where an Env answers turns, a rollout calls its model, through `chat`: by an OpenAI client of its
choice or by `chat.complete`. Every call is recorded; what `solve` returns is the episode's reward.
Tasks, services, arguments and names are those of any other Env.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from agentrl.bounds import A_REWARD
from agentrl.envs.env import Env
from agentrl.envs.messages import Step
from agentrl.envs.policy_failures import FailureKey, PolicyFailures
from agentrl.envs.registry import MADE_ENV, refuse_bare, register
from agentrl.envs.returned import SampledStep
from agentrl.errors import ConfigError, EnvError

__all__ = ["Chat", "Rollout", "outcome_of", "rollout"]


class Chat(Protocol):
    """An episode's way to its model.

    `base_url` and `api_key` are for any client that speaks OpenAI's chat API, on this host; the key
    is this episode's alone and ends with it. `model` is a name for the client's sake. `seed` is the
    same for every attempt at this episode; `services` are the addresses of the rollout's services.
    """

    base_url: str
    api_key: str
    model: str
    seed: int
    services: Mapping[str, str]

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The model's next message, an OpenAI `assistant` message, after `messages`. `options` are
        further fields of a request (`max_tokens`, `stop`).

        Raises ChatError for what cannot be answered: a malformed request, a budget that is spent.
        """
        ...


class Rollout(Env):
    """Subclass it and define `solve`; or write a function under `@rollout`."""

    #: What an exception of `solve` is worth that means that the policy has failed, such as a
    #: framework's turn limit: rewards by class, or by "package.module:Name".
    failures: Mapping[FailureKey, float] = MappingProxyType({})
    #: What every other exception of `solve` is worth; None: it is an error of the agent's. Both
    #: hold once a call was answered; before, no policy can have failed.
    policy_error: float | None = None
    policy_failures: PolicyFailures = PolicyFailures({}, None, who="Rollout")
    #: It asks its model by text or ids (`/generate`), and its turns may follow anything.
    writes_prompts: bool = False
    #: A function of the user's that runs once the policy is done, by its flag: a deadline that
    #: comes meanwhile is an error of it. Empty: none does.
    hook_under_way: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.policy_failures = PolicyFailures(
            cls.failures, cls.policy_error, who=f"rollout {cls.__qualname__}"
        )

    async def solve(self, task: dict[str, Any], chat: Chat) -> float | Step:
        """Play the episode of `task`, a row of the task source; returns its reward, or a `Step`
        with reward and metrics (and `truncated`, where a budget of the agent's own has ended it;
        and `rewards`, where its roles have earned unlike ones: `--reward-level role`).
        """
        raise NotImplementedError(f"{type(self).__name__} does not define solve")


Solve = TypeVar("Solve", bound=Callable[..., Awaitable[float | Step]])


def rollout(
    name: str,
    *,
    failures: Mapping[FailureKey, float] | None = None,
    policy_error: float | None = None,
    metrics: Mapping[str, str] | None = None,
) -> Callable[[Solve], Solve]:
    """Make `async def solve(task, chat) -> float` an environment known as `name`; the function
    stays what it is. Further parameters of it are `--env-args`; `failures`, `policy_error` and
    `metrics` are those of `Rollout`.

    Raises ConfigError for what is no `async def` or cannot be called so, and as `register` does.
    """
    refuse_bare("rollout", name)

    def hold(function: Solve) -> Solve:
        is_async: bool = inspect.iscoroutinefunction(function)
        if not is_async:
            raise ConfigError(
                f"@rollout({name!r}) stands above {function!r}; write "
                "`async def solve(task, chat):`"
            )
        if [*inspect.signature(function).parameters][:2] == ["chat", "task"]:
            raise ConfigError(
                f"{function.__qualname__} takes chat and task; it is called as (task, chat)"
            )
        made = _made(function, failures or {}, policy_error)
        made.metrics = metrics or {}
        vars(function)[MADE_ENV] = register(name)(made)
        return function

    return hold


def _made(
    function: Callable[..., Awaitable[float | Step]],
    worth: Mapping[FailureKey, float],
    other: float | None,
) -> type[Rollout]:
    """The Rollout whose `solve` is `function`, and what exceptions of it are `worth`."""
    name = getattr(function, "__qualname__", "solve")
    signature = inspect.signature(function)

    class Made(Rollout):
        __qualname__ = name
        failures = worth
        policy_error = other

        def __init__(self, **env_args: Any) -> None:
            super().__init__()
            try:
                signature.bind({}, None, **env_args)
            except TypeError as error:
                raise ConfigError(
                    f"{name}{signature} cannot be called as {name}(task, chat, **env_args) with "
                    f"--env-args {env_args}: {error}"
                ) from error
            self._solve = functools.partial(function, **env_args)

        async def solve(self, task: dict[str, Any], chat: Chat) -> float | Step:
            return await self._solve(task, chat)

    Made.__name__ = Made.solve.__qualname__ = name
    Made.__module__ = function.__module__
    Made.__doc__ = function.__doc__
    return Made


def outcome_of(returned: object, who: str) -> Step:
    """What `solve` of `who` has returned, checked. Raises EnvError."""
    if isinstance(returned, SampledStep):
        return returned
    if isinstance(returned, Step):
        if returned.messages:
            raise EnvError(f"{who} returned a Step with messages; nobody reads them")
        return Step(
            reward=returned.reward,
            truncated=returned.truncated,
            metrics=dict(returned.metrics),
            excluded=returned.excluded,
            rewards=dict(returned.rewards),
        )
    try:
        return Step(reward=returned)  # type: ignore[arg-type]
    except EnvError as error:
        raise EnvError(
            f"{who} returned {returned!r:.100}; return {A_REWARD}, or a Step with reward and "
            "metrics"
        ) from error
