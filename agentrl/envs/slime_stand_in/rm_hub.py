"""`async_rm` and `batched_async_rm`: the run's own reward, for a function that asks for it itself.

The episode that calls says what its reward is (`judging`); outside of one there is none. Under
`--group-rm` the samples of `batched_async_rm` are a group, whose reward sees them together.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import anyio

from agentrl.errors import EnvError

__all__ = ["async_rm", "batched_async_rm"]

#: What a sample is worth, called with (args, sample); what each of a group, with (args, samples).
Judge = Callable[[Any, Any], Awaitable[Any]]
_JUDGE: ContextVar[tuple[Judge, bool] | None] = ContextVar("judge", default=None)


@contextmanager
def judging(judge: Judge, *, sees_groups: bool = False) -> Iterator[None]:
    """Have `judge` asked by what runs in this block, and by the tasks that it starts;
    `sees_groups`: of several samples at once."""
    token = _JUDGE.set((judge, sees_groups))
    try:
        yield
    finally:
        _JUDGE.reset(token)


async def async_rm(args: Any, sample: Any, **kwargs: Any) -> Any:
    """What the flags of a reward say of a sample."""
    del kwargs
    judge, _ = _judge()
    return await judge(args, sample)


async def batched_async_rm(args: Any, samples: Sequence[Any], **kwargs: Any) -> list[Any]:
    """The same of several samples at once, in their order."""
    judge, sees_groups = _judge()
    if sees_groups:
        return [*await judge(args, [*samples])]
    found: list[Any] = [None] * len(samples)

    async def one(place: int, sample: Any) -> None:
        found[place] = await async_rm(args, sample, **kwargs)

    try:
        async with anyio.create_task_group() as group:
            for place, sample in enumerate(samples):
                group.start_soon(one, place, sample)
    except ExceptionGroup as failed:  # whether an episode is tried again depends on its class
        raise failed.exceptions[0] from failed
    return found


def _judge() -> tuple[Judge, bool]:
    if (found := _JUDGE.get()) is None:
        raise EnvError("async_rm is called outside of an episode, and no reward is known there")
    return found
