"""`--rollout-sample-hook-path`: functions of the user's look at each sample that a function of
`--custom-generate-function-path` has played, before it is rewarded.

    [async] def hook(args, sample, *, rollout_id=None, evaluation=False)    -> sample, or None

Each is called in turn, with what the one before it left; None: the sample that it was given. It is
told what its signature asks for. `rollout_id` is None: an episode is begun for no iteration.
"""

import inspect
from collections.abc import Callable
from typing import Any

from agentrl.envs.returned import read_samples
from agentrl.user_code import Kind, Signature, hook, load_once

__all__ = ["HOOKS", "seen_by"]

_TOLD = ("rollout_id", "evaluation")
_TWO = ("args", "sample")

#: They are called with what of `_TOLD` they take.
HOOKS: Kind[Callable[..., Any]] = hook(
    "hook(args, sample)",
    [
        Signature(_TWO, is_slimes=True),
        Signature(_TWO, keywords=_TOLD, is_slimes=True),
        *(Signature(_TWO, keywords=(name,), is_slimes=True) for name in _TOLD),
    ],
    may_await=True,
    group="agentrl.sample_hooks",
    noun="sample hook",
    builtin={},
    flag="--rollout-sample-hook-path",
)


async def seen_by(place: str, args: Any, samples: list[Any], *, evaluation: bool) -> None:
    """Put what the function at `place` makes of samples in their place. Raises EnvError for what is
    no sample, and what it raises."""
    function = load_once(HOOKS, place)
    named = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in named.values())
    told = {"rollout_id": None, "evaluation": evaluation}
    given = {name: value for name, value in told.items() if takes_all or name in named}
    for number, sample in enumerate(samples):
        found = function(args, sample, **given)
        found = await found if inspect.isawaitable(found) else found
        if found is not None:
            (samples[number],) = read_samples([found], place)
