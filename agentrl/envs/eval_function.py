"""`--eval-function-path`: the function that plays all evaluation sets, in slime's signature.

    [async] def evaluate(args, rollout_id, data_source, evaluation=True)
        -> RolloutFnEvalOutput(data={SET: {"rewards", "truncated", "samples"}}, metrics)

It is called once for each evaluation. `args.eval_datasets` are the sets that flags name; it may
play others. What calls it, and reads what it returns, is `agentrl/actors/batches`.
"""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from agentrl.config.args import Args
from agentrl.config.conditions import ROW_ENVS
from agentrl.envs.env import EnvContext, bound_env
from agentrl.envs.eval_datasets import eval_datasets
from agentrl.envs.function_args import args_for
from agentrl.envs.no_tasks import NoTasks
from agentrl.envs.sample_rewards import SampleRewards
from agentrl.errors import EnvError
from agentrl.types import SamplingParams, Task
from agentrl.user_code import Kind, Signature, hook, load

__all__ = [
    "CALLED",
    "EVAL_FUNCTIONS",
    "FLAG",
    "STEP",
    "EvalFunction",
    "call_of",
]

FLAG = "--eval-function-path"
#: What the call is named where sets are, such as in the log of one that has failed.
CALLED = "eval-function"
#: Where the row of a call has the number of iterations before it.
STEP = "rollout_id"
_NO_TASKS = NoTasks(
    "data_source gives an evaluation nothing: its tasks are those of training; read the files of "
    "args.eval_datasets"
)
_REWARD = set(inspect.signature(SampleRewards.__init__).parameters) - {"self", "group_rm"}


EVAL_FUNCTIONS: Kind[Callable[..., Any]] = hook(
    "evaluate(args, rollout_id, data_source, evaluation=True)",
    [Signature(("args", "rollout_id", "data_source"), keywords=("evaluation",), is_slimes=True)],
    may_await=True,
    group="agentrl.eval_functions",
    noun="evaluation function",
    builtin={},
    flag=FLAG,
)


def call_of(step: int) -> Task:
    """The task of a call after iteration `step`."""
    return Task(CALLED, {STEP: step})


class EvalFunction:
    """The function at `place`, and what it is given. `context`: as an Env's of the run, with its
    flags; `reward`: arguments of an Env for rows, whose rewards `async_rm` gives."""

    def __init__(self, place: str, context: EnvContext, reward: Mapping[str, Any]) -> None:
        assert context.run_flags is not None
        self.function = load(EVAL_FUNCTIONS, place)
        self._flags = context.run_flags
        self._datasets = eval_datasets(self._flags)
        self._reward = {name: value for name, value in reward.items() if name in _REWARD}
        make = functools.partial(SampleRewards, **self._reward)
        self._rewards = bound_env(make, context, is_evaluation=True)

    @property
    def who(self) -> str:
        """The function, for messages."""
        return f"{FLAG} {getattr(self.function, '__qualname__', 'evaluate')}"

    def size_of(self, name: str) -> int:
        """Samples of each task of the set `name`."""
        sizes = {one.name: one.n_samples_per_eval_prompt for one in self._datasets}
        usual: int = self._flags.n_samples_per_eval_prompt
        return sizes.get(name, usual)

    def args(self, base_url: str, api_key: str, sampling: SamplingParams) -> Args:
        """Those of one call."""
        args: Any = args_for(self._flags, base_url, api_key, sampling)
        args.eval_datasets = copy.deepcopy(self._datasets)
        args.eval_prompt_data = [word for one in self._datasets for word in (one.name, one.path)]
        return cast(Args, args)

    def call(self, args: Args, step: int) -> Any:
        """What it returns, or the coroutine that does."""
        return self.function(args, step, _NO_TASKS, evaluation=True)

    async def worth(self, args: Args, sample: Any) -> Any:
        """What the run's reward makes of a sample. Raises EnvError."""
        if self._flags.group_rm:
            raise EnvError(
                "async_rm in an evaluation: the reward of --group-rm compares the answers of a "
                "group; call it in your function"
            )
        if self._flags.env_mix or self._flags.env not in (None, *ROW_ENVS):
            raise EnvError(
                "async_rm in an evaluation: the rewards of this run are those of its environments; "
                "score in your function"
            )
        rewards = copy.copy(self._rewards)
        keys = self._reward.get("input_key", "input"), self._reward.get("label_key") or "label"
        said = dict(zip(keys, (sample.prompt, sample.label), strict=True))
        await rewards.reset(seed=0, task=said | {"metadata": sample.metadata})
        return await rewards.worth(args, sample)
