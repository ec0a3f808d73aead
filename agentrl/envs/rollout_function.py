"""`--rollout-function-path`: the function that plays all that a worker has, in slime's signature.

    [async] def generate_rollout(args, rollout_id, data_source, evaluation=False)

What calls it, and binds what it returns to its episodes, is `agentrl/actors/batches`.
"""

import functools
from collections.abc import Callable
from typing import Any

from agentrl.user_code import Kind, Signature, hook, load

__all__ = ["FLAG", "load_rollout_function", "rollout_functions"]

FLAG = "--rollout-function-path"
RolloutFunction = Callable[..., Any]


@functools.cache
def rollout_functions() -> Kind[RolloutFunction]:
    """The kind of such functions."""
    parameters = ("args", "rollout_id", "data_source")
    return hook(
        "generate_rollout(args, rollout_id, data_source, evaluation=False)",
        [Signature(parameters, keywords=("evaluation",), is_slimes=True)],
        may_await=True,
        group="agentrl.rollout_functions",
        noun="rollout function",
        builtin={},
        flag=FLAG,
    )


@functools.cache
def load_rollout_function(place: str) -> RolloutFunction:
    """The function of `pkg.module.name` or `path/to/file.py[:name]`. Raises ConfigError."""
    return load(rollout_functions(), place)
