"""`--buffer-filter-path`: a function of the user's chooses among groups that were given back.

    def choose(args, rollout_id, buffer, num_samples) -> groups of `buffer`, at most `num_samples`

`buffer` is a list of groups, each a list of samples, the oldest first. What is returned is played
next. What is left in `buffer` waits. What the function takes out of it and does not return, nobody
plays. `rollout_id` is None. Without a function the first groups are taken.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from agentrl.errors import EnvError
from agentrl.user_code import Kind, Signature, hook, place_in

__all__ = ["BUFFER_FILTERS", "FLAG", "BufferFilter", "chosen"]

FLAG = "--buffer-filter-path"
BufferFilter = Callable[[Any, None, list[Any], int], Any]


def _without_id(function: Callable[..., Any]) -> BufferFilter:
    @functools.wraps(function)
    def choose(args: Any, rollout_id: None, buffer: list[Any], num_samples: int) -> Any:
        return function(args, buffer, num_samples)

    return choose


BUFFER_FILTERS: Kind[BufferFilter] = hook(
    "choose(args, rollout_id, buffer, num_samples)",
    [
        Signature(("args", "rollout_id", "buffer", "num_samples"), is_slimes=True),
        Signature(("args", "buffer", "num_samples"), _without_id, is_slimes=True),
    ],
    group="agentrl.buffer_filters",
    noun="buffer filter",
    builtin={},
    flag=FLAG,
)


def chosen(
    function: BufferFilter, args: Any, groups: Sequence[list[Any]], num: int
) -> tuple[list[int], list[int]]:
    """Have it choose at most `num` of `groups`. Returns the places of those that it returned, and
    of those that it took out and did not return. Raises EnvError for an answer that is none, and
    what the function raises."""
    buffer = list(groups)
    found = function(args, None, buffer, num)
    if not isinstance(found, (list, tuple)):
        raise _fault(function, f"it returned a {type(found).__name__}; a list of groups is wanted")
    places = {id(group): place for place, group in enumerate(groups)}
    try:
        taken = [places[id(group)] for group in found]
    except KeyError:
        raise _fault(
            function, "it returned a group that is not in buffer; return the lists that are there"
        ) from None
    if len(set(taken)) < len(taken):
        raise _fault(function, "it returned a group twice")
    if len(taken) > num:
        raise _fault(function, f"it returned {len(taken)} groups, and was asked for {num}")
    left = {places.get(id(group)) for group in buffer}
    return taken, [place for place in range(len(groups)) if place not in left.union(taken)]


def _fault(function: BufferFilter, text: str) -> EnvError:
    return EnvError(f"{FLAG}: {text}: {place_in(function)}")
