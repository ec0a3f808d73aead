"""`--rollout-function-path`: the function that plays all that a worker has, in slime's signature.

    [async] def generate_rollout(args, rollout_id, data_source, evaluation=False)

What calls it, and binds what it returns to its episodes, is `agentrl/actors/batches`.
"""

from collections.abc import Callable
from typing import Any

from agentrl.user_code import Kind, Signature, hook

__all__ = ["FLAG", "ROLLOUT_FUNCTIONS"]

FLAG = "--rollout-function-path"
ROLLOUT_FUNCTIONS: Kind[Callable[..., Any]] = hook(
    "generate_rollout(args, rollout_id, data_source, evaluation=False)",
    [Signature(("args", "rollout_id", "data_source"), keywords=("evaluation",), is_slimes=True)],
    may_await=True,
    group="agentrl.rollout_functions",
    noun="rollout function",
    builtin={},
    flag=FLAG,
)
