"""`Env`: one episode of a task, written by users. Never sees a token id.

    NEW -> reset -> step* -> close            close always runs, also after a failed reset
    NEW -> restore -> step* -> close          where an earlier attempt left a snapshot

An instance is used once. Its methods are never called concurrently. Any exception that leaves it
is an `EnvError` to the framework, unless it is one of agentrl's own errors, which keep their class
(a retriever that is gone may raise `InfrastructureError` to have the episode tried again).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import anyio
import msgspec

from agentrl.bounds import A_REWARD
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import AgentRLError, ConfigError, EnvError, InfrastructureError
from agentrl.tools.run import run_calls
from agentrl.tools.tool import Tool, collect_tools
from agentrl.types import EpisodeSummary, Task, TaskSource

__all__ = ["Env", "EnvContext", "ServiceSpec", "Tasks", "bound_env", "late_reward"]

#: Tasks that an Env brings: a row alone is named by its place.
Tasks = Iterable[Task | dict[str, Any]]

T = TypeVar("T")
E = TypeVar("E", bound="Env")

#: Methods that make an Env's reward.
_REWARDING = frozenset({"score", "step", "run_tools"})


class ServiceSpec(msgspec.Struct, frozen=True):
    """A process that an Env needs beside it, started by the cluster once per run or per node.

    `argv` is run without a shell, `{host}` and `{port}` in it replaced by the address to listen on;
    the service is up when an HTTP GET of `ready_path` there answers 200. Its address reaches the
    Env as `services[name]`, e.g. `http://127.0.0.1:31007`.

    `gpus`: devices of its own in a run on GPUs, all on one node. A service that asks for none sees
    none, because all others belong to engines and learner. `cpus`: processors that Ray sets aside
    for it, on any one node (with its devices, if it asks for both); 0: it runs where the program
    does. A run without a cluster sets none aside.

    `per`: "run": one process serves all agent workers. "node": each node with agent workers has a
    copy with `gpus` and `cpus` of its own there, and an Env finds that of its node under the same
    name.

    Raises ValueError for fewer than 0, and for another `per`.
    """

    name: str
    argv: list[str]
    ready_path: str
    gpus: int = 0
    cpus: int = 0
    per: Literal["run", "node"] = "run"

    def __post_init__(self) -> None:
        if self.per not in ("run", "node"):
            raise ValueError(f'service {self.name}: per is {self.per!r}; give "run" or "node"')
        for what, number in (("gpus", self.gpus), ("cpus", self.cpus)):
            if number < 0:
                raise ValueError(f"service {self.name}: {what} is {number}; give 0 or more")


class EnvContext(msgspec.Struct, frozen=True):
    """What a run gives each of its Envs, and of which kind its episode is; the attributes of `Env`
    with these names say what each is."""

    services: Mapping[str, str] = {}
    tool_timeout_s: float = 60.0
    allow_unsafe_sandbox: bool = False
    run_flags: Any = None
    is_evaluation: bool = False
    reward_timeout_s: float | None = None


class Env:
    """Subclass it: `reset`, tools, and `score` or `step`.

    Constructed with `--env-args` as keyword arguments. The framework binds it to its run (`bind`)
    before it calls anything else.
    """

    #: Tools by name: every `@tool` of the class and its bases; `collect_tools` has the rule.
    tools: Mapping[str, Tool[Any]] = MappingProxyType({})
    #: Further tools that the prompt shows, as OpenAI's schemas; `step` answers calls of them.
    schemas: Sequence[Mapping[str, Any]] = ()
    #: Address of each service of `service_specs`.
    services: Mapping[str, str] = MappingProxyType({})
    #: What the metrics mean that the Env counts: a phrase by name, for dashboards. Those of base
    #: classes hold too. A metric without a word here is kept as well.
    metrics: Mapping[str, str] = MappingProxyType({})
    #: Deadline in seconds of a tool call whose tool declares none.
    tool_timeout_s: float = 60.0
    #: Deadline in seconds of `score` and `score_group`; None: that of the episode.
    reward_timeout_s: float | None = None
    #: The episode is one of an evaluation, and nothing is trained on it.
    is_evaluation: bool = False
    #: What the episode answers, spelled so that equal answers are equal texts; `score` or `step`
    #: sets it. An evaluation that plays a task several times counts it (`maj@k`). Empty: no answer.
    vote: str = ""
    #: The answer is there, and what it is worth is being found out: a deadline that comes meanwhile
    #: is an error, and no reward of 0.
    is_scoring: bool = False
    #: Scorings that have begun and not come back; several samples may be scored at once.
    _num_scorings: int = 0
    #: A tool that runs the model's code may do so where there is no bubblewrap.
    allow_unsafe_sandbox: bool = False
    #: Calls of one turn that the default `step` runs; the others are answered with an error.
    max_calls_per_turn: int = 16
    #: The class defines `snapshot` and `restore`.
    can_be_saved: bool = False
    #: The class defines `score_group`.
    scores_groups: bool = False
    #: `answer` of what `score_group` sees has the reasoning of the last turn before its text.
    groups_show_reasoning: bool = False
    #: The flags of the run (`RunConfig`); None where there is no run.
    run_flags: Any = None
    #: The episode's reward is `score` of the final turn's text and nothing else: whatever the tools
    #: did, a fresh Env with the same seed and task gives that text the same. The framework verifies
    #: it on the first rewarded episodes and stops a run in which it is not so. False, for a reward
    #: that also reads what the tools have done, or that differs each time: nothing is verified.
    #: None: not said; nothing is verified, and the user is told how to have it. A class with a
    #: `score`, `step` or `run_tools` of its own does not inherit what a base has said.
    reward_reads_text_only: bool | None = None

    def __init__(self, **env_args: Any) -> None:
        if env_args:
            name = type(self).__name__
            raise ConfigError(f"{name} takes no --env-args; it was given {sorted(env_args)}")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = MappingProxyType(collect_tools(cls))
        saving = [getattr(cls, name) is not getattr(Env, name) for name in ("snapshot", "restore")]
        if any(saving) and not all(saving):
            one, other = ("snapshot", "restore") if saving[0] else ("restore", "snapshot")
            raise ConfigError(
                f"{cls.__name__} defines {one} without {other}: define both, or neither"
            )
        cls.can_be_saved = all(saving)
        cls.scores_groups = cls.score_group is not Env.score_group
        if "reward_reads_text_only" not in vars(cls) and not _REWARDING.isdisjoint(vars(cls)):
            cls.reward_reads_text_only = None

    def bind(self, context: EnvContext) -> None:
        """Take what the run gives. Called on the class (`Env.bind(env, ...)`), so that an Env may
        have a tool or a method of this name."""
        for name in EnvContext.__struct_fields__:
            setattr(self, name, getattr(context, name))

    @classmethod
    def described_metrics(cls) -> dict[str, str]:
        """`metrics` of the class and its bases. Raises ConfigError for what is no phrase."""
        described: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            found = vars(base).get("metrics")
            # An attribute of the same name that is no mapping is the class's own business.
            for name, words in found.items() if isinstance(found, Mapping) else ():
                if not isinstance(name, str) or not isinstance(words, str):
                    raise ConfigError(
                        f"{base.__qualname__}.metrics has {name!r}: {words!r:.80}; write what the "
                        'metric means, as in {"bad_actions": "turns that name no action"}'
                    )
                described[name] = words
        return described

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        """Services to start for a run of this Env with `args` (`--env-args`), by name."""
        del args
        return {}

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource | Tasks | None:
        """Training tasks of an Env that brings its own, for a run without `--prompt-data`: a list,
        a generator, or a source. Their order follows from `args` and `seed` alone; a generator is
        made anew where a run goes on. `args` are those of `--env-args`."""
        del args, seed
        return None

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> Mapping[str, Tasks]:
        """Evaluation sets by name, for a run without `--eval-prompt-data`; the same tasks
        whenever it is called."""
        del args
        return {}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        """Begin the episode and return its prompt.

        `task` is the row of the task source; `seed` is the same for every attempt at this episode.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define reset")

    async def step(self, turn: AssistantTurn) -> Step:
        """Answer a turn. By default: a parse error is an observation, tool calls are run and their
        results and errors are tool messages, a turn without a call is scored and ends it.

        Counts the metrics `tool_calls` and `tool_errors`.
        """
        if turn.parse_error is not None:
            observation = Message.tool(f"error: {turn.parse_error}")
            return Step(messages=[observation], metrics={"tool_errors": 1.0})
        if not turn.tool_calls:
            return await self._scored(turn.text)
        return await self.run_tools(turn)

    async def _scored(self, text: str) -> Step:
        """The end of an episode, with what `score` says of its last words."""
        reward = await self._while_scoring(self.score(text))
        try:
            return Step(reward=reward, terminated=True)
        except EnvError as error:
            raise EnvError(
                f"{self._scored_by} returned {reward!r:.100}; return {A_REWARD}"
            ) from error

    @property
    def _scored_by(self) -> str:
        """What has said what an answer is worth, for messages."""
        return f"{type(self).__name__}.score"

    async def _while_scoring(self, worth: Awaitable[T]) -> T:
        """What the answer is worth. The deadline of the episode, if it ends this, leaves
        `is_scoring` True, whatever comes back beside it."""
        self._num_scorings += 1
        self.is_scoring = True
        try:
            with anyio.move_on_after(self.reward_timeout_s):
                found = await worth
                self._came_back()
                return found
        except Exception:
            self._came_back()
            raise
        self._came_back()
        raise late_reward(self, f"within {self.reward_timeout_s:g} s (--reward-timeout-s)")

    def _came_back(self) -> None:
        self._num_scorings -= 1
        self.is_scoring = self._num_scorings > 0

    @property
    def asks_server(self) -> bool:
        """The reward is what a server answers: one that is late may answer another attempt."""
        return False

    async def run_tools(self, turn: AssistantTurn) -> Step:
        """Run the turn's calls; one tool message each, in their order. Neighbours whose tools are
        `parallel` run at once."""
        calls = turn.tool_calls[: self.max_calls_per_turn]
        results = await run_calls(self, calls, self.tool_timeout_s)
        pairs = zip(results, calls, strict=True)
        messages = [Message.tool(result.text, call.id) for result, call in pairs]
        num_run, num_errors = len(calls), sum(result.is_error for result in results)
        for call in turn.tool_calls[num_run:]:
            refusal = f"error: only the first {num_run} calls of a turn are run"
            num_errors += 1
            messages.append(Message.tool(refusal, call.id))
        metrics = {"tool_calls": float(num_run), "tool_errors": float(num_errors)}
        return Step(messages=messages, metrics=metrics)

    async def score(self, text: str) -> float:
        """Reward of the final turn. `text` is the model's own words in it, nothing else."""
        if self.scores_groups:
            return 0.0
        raise NotImplementedError(f"{type(self).__name__} defines neither score nor step")

    async def score_group(
        self, task: dict[str, Any], episodes: Sequence[EpisodeSummary]
    ) -> Sequence[float]:
        """Rewards of the finished episodes of a group, seen together: one each, in their order.
        Optional; each has its own `reward` otherwise.

        Called on a fresh Env that is not reset. `episodes` hold what each came to: its `answer`
        (text of the last turn, cut at 65,536 characters), `reward`, `stop_reason` and `metrics`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define score_group")

    async def snapshot(self) -> bytes:
        """All that the episode has become, between two turns. Optional; `restore` goes with it.

        With both, an episode whose worker or engine was lost goes on from its last turn instead of
        beginning anew. Called after each turn but the last.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define snapshot")

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        """Become, in place of `reset`, what `snapshot` of another instance has given as `state`;
        `seed` and `task` as for its `reset`. An error here is an `env_error`, after which the
        episode begins anew."""
        raise NotImplementedError(f"{type(self).__name__} does not define restore")

    async def close(self) -> None:
        """Release what the episode holds. Called once or more, after any failure too."""


def bound_env(make: Callable[[], E], context: EnvContext, *, is_evaluation: bool = False) -> E:
    """The Env of an episode, made and bound."""
    env = make()
    Env.bind(env, msgspec.structs.replace(context, is_evaluation=is_evaluation))
    return env


def late_reward(env: Env, limit: str, method: str = "score") -> AgentRLError:
    """The error of an answer that got no reward in its time. It is never a reward of 0."""
    kind = InfrastructureError if env.asks_server else EnvError
    return kind(f"{type(env).__name__}.{method} gave no reward {limit}")
