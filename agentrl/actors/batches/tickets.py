"""`BatchEpisode`: an episode that waits to be taken by a rollout function, or is with it.

waiting -> taken -> told: its samples, or an error
   ^---------'
   given back: it begins anew
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agentrl.actors.endpoint.calls import Call
from agentrl.config.args import Args
from agentrl.types import EpisodeAssignment, TurnClient

__all__ = ["BatchEpisode", "Delivered", "Group"]


@dataclass(frozen=True)
class Delivered:
    """What a function has returned for an episode: its samples, the calls that they consist of, and
    the numbers of the call."""

    samples: list[Any]
    calls: Sequence[Call]
    metrics: dict[str, float]


@dataclass(eq=False)
class BatchEpisode:
    """`sample`: as the function is given it; `worth`: what a sample is worth, or each of a group,
    in the loop of the worker; `timed`: called there when the time of the episode begins (True) or
    stops."""

    assignment: EpisodeAssignment
    client: TurnClient
    sample: Any
    args: Args
    worth: Callable[[Any, Any], Awaitable[Any]]
    timed: Callable[[bool], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    told: "asyncio.Future[Delivered]" = field(init=False)

    def __post_init__(self) -> None:
        self.told = self.loop.create_future()

    def time(self, *, runs: bool) -> None:
        """Begin its time, or stop it. From any thread."""
        self.there(self.timed, runs)

    def tell(self, played: Delivered) -> None:
        """From any thread."""
        self.there(self._set, played, None)

    def fail(self, error: Exception) -> None:
        """From any thread."""
        self.there(self._set, None, error)

    def _set(self, played: Delivered | None, error: Exception | None) -> None:
        if self.told.done():
            return
        if error is not None:
            self.told.set_exception(error)
        elif played is not None:
            self.told.set_result(played)

    def there(self, call: Callable[..., None], *args: Any) -> None:
        with suppress(RuntimeError):  # the worker has ended
            self.loop.call_soon_threadsafe(call, *args)


@dataclass(eq=False)
class Group:
    """The episodes of one task that this worker has. A part of a group arrives alone where the
    others have ended: its samples are made up to `size`, and what comes of those is given up."""

    name: str
    size: int
    tickets: dict[int, BatchEpisode] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        return len(self.tickets) == self.size

    def samples(self, number: int) -> list[Any]:
        """New ones, in order of their episodes; `number` is that of the group in this worker."""
        usual = next(iter(self.tickets.values()))
        found = []
        for index in range(self.size):
            sample = copy.deepcopy(self.tickets.get(index, usual).sample)
            sample.group_index, sample.index = number, number * self.size + index
            found.append(sample)
        return found
