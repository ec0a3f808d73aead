"""`Batch`: one call of a rollout function: what it is given, and what becomes of what it returns.

Of the groups that it has taken, each has one end: its episodes get their samples; it is given up
(left out of what is returned); it is given back; or it fails, with the call or by itself. A sample
is known by its `index`; one that this call was not given fails the call.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any

from agentrl.actors.batches.owned import OwnedCalls
from agentrl.actors.batches.recorder import BatchRecorder
from agentrl.actors.batches.tickets import BatchEpisode, Delivered, Group
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.writing import Writers
from agentrl.config.args import Args
from agentrl.envs.buffer_filter import BufferFilter
from agentrl.envs.returned import Returned, missing, returned
from agentrl.envs.rollout_function import FLAG
from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rm_hub import judging
from agentrl.errors import EnvError, GivenUpError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.visible import error_text

__all__ = ["Batch", "BatchGround", "BatchSource"]

_RETURN = "return RolloutFnTrainOutput(samples=...), or a list of groups, each a list of samples"


@dataclass(frozen=True, kw_only=True)
class BatchGround:
    """What the calls of a function share. `batch_size`: groups that one call plays at most;
    `group_size`: samples of a group; `buffer_filter`: what chooses among groups given back;
    `sees_groups`: the reward is one of groups."""

    function: Callable[..., Any]
    chat: ChatFormat
    limits: Limits
    endpoint: Endpoint
    writers: Writers
    batch_size: int
    group_size: int
    buffer_filter: BufferFilter | None = None
    sees_groups: bool = False

    @property
    def who(self) -> str:
        """The function, for messages."""
        return f"{FLAG} {getattr(self.function, '__qualname__', 'generate_rollout')}"

    @property
    def limit(self) -> str:
        """How long an episode may take."""
        return f"{self.limits.episode_timeout_s:g} s (--episode-timeout-s)"


class BatchSource:
    """What the function takes its samples from."""

    def __init__(self, batch: "Batch") -> None:
        self._batch = batch

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        """At most so many groups of new samples; none where the run gives no more until groups of
        this call have ended. The first ask of a call is given `args.rollout_batch_size`."""
        return self._batch.get(num_samples)

    def add_samples(self, samples: Iterable[list[Any]]) -> None:
        """Give groups back: they begin anew in a later ask. Raises EnvError for one that was not
        given here."""
        self._batch.give_back(list(samples))

    def __len__(self) -> int:
        """Groups of one call."""
        return self._batch.wanted


class Batch:
    """`wanted`: groups that it is called for. `take` and `give_back`: how it gets groups, and is
    rid of them."""

    def __init__(
        self,
        ground: BatchGround,
        first: BatchEpisode,
        args: Args,
        number: int,
        wanted: int,
        take: "Callable[[Batch, int], list[list[Any]]]",
        give_back: "Callable[[Batch, Group, list[Any]], None]",
        lock: threading.Condition,
    ) -> None:
        self.number, self.wanted = number, wanted
        self.has_settled = False
        self._has_returned = False
        self.failure: Exception | None = None
        self._ground, self._first, self._args, self._lock = ground, first, args, lock
        self._take, self._give_back = take, give_back
        self._recorder = BatchRecorder(
            first.assignment,
            ground.chat,
            ground.limits.of(first.assignment),
            first.client,
            writers=ground.writers,
            writes_prompts=True,
        )
        self._token = ground.endpoint.open(self._recorder)
        self._groups: dict[int, Group] = {}

    # ---- the call ----

    def call(self) -> Any:
        """What the function returns. Raises what it raises."""
        args: Any = self._args
        host = args.sglang_router_ip.rpartition("@")[2]
        args.sglang_router_ip = f"agentrl:{self._token}@{host}"
        args.rollout_batch_size = args.over_sampling_batch_size = self.wanted
        with judging(self._judge, sees_groups=self._ground.sees_groups):
            found = self._ground.function(args, self.number, BatchSource(self), evaluation=False)
            return run(found) if asyncio.iscoroutine(found) else found

    async def _judge(self, args: Any, asked: Any) -> Any:
        """The run's reward of a sample, or of those of a group, which is known in the loop of the
        worker."""
        samples = asked if isinstance(asked, list) else [asked]
        with self._lock:
            group = self._groups[self._number_of(samples)]
            index = samples[0].index % self._ground.group_size
            ticket = group.tickets.get(index) or next(iter(group.tickets.values()), self._first)
        found = asyncio.run_coroutine_threadsafe(_of(ticket, args, asked), ticket.loop)
        return await asyncio.wrap_future(found)

    # ---- groups ----

    def get(self, num: int) -> list[list[Any]]:
        """See `BatchSource`."""
        return self._take(self, num)

    def take(self, group: Group, number: int) -> list[Any]:
        """`group` is played by this call."""
        with self._lock:
            self._groups[number] = group
            for ticket in group.tickets.values():
                ticket.time(runs=True)
            return group.samples(number)

    def give_back(self, samples: list[Any]) -> None:
        """See `BatchSource`."""
        with self._lock:
            for each in samples:
                number = self._number_of(_flat(each))
                group = self._groups.pop(number)
                for ticket in group.tickets.values():
                    ticket.time(runs=False)
                if group.tickets:
                    self._give_back(self, group, each)

    def forget(self, ticket: BatchEpisode) -> bool:
        """Nobody waits for this episode any more. Whether the function plays on for nobody now."""
        with self._lock:
            if not self.has(ticket):
                return False
            for group in self._groups.values():
                index = ticket.assignment.id.index
                if group.tickets.get(index) is ticket:
                    del group.tickets[index]
            return self.is_empty and not self._has_returned

    def has(self, ticket: BatchEpisode) -> bool:
        """Whether it plays this episode."""
        return any(ticket in group.tickets.values() for group in self._groups.values())

    @property
    def is_empty(self) -> bool:
        """Whether it plays none."""
        return not any(group.tickets for group in self._groups.values())

    def _number_of(self, samples: list[Any]) -> int:
        """The group of samples that were given by this call. Raises EnvError for others."""
        found = {self._known(sample) for sample in samples}
        if len(found) != 1:
            raise EnvError(f"{self._ground.who} mixes samples of the groups {sorted(found)} in one")
        return found.pop()

    def _known(self, sample: Any) -> int:
        index = getattr(sample, "index", None)
        size = self._ground.group_size
        if isinstance(index, int) and index // size in self._groups:
            return index // size
        raise EnvError(
            f"{self._ground.who} returned, or gave back, a sample of index {index!r:.40}: call "
            f"{self.number} was given none such, or has given it back; return the samples of "
            "data_source.get_samples with their index, in the call that took them"
        )

    # ---- its end ----

    def settle(self, found: Any) -> None:
        """Tell each episode what was returned for it. Raises nothing: what cannot be read fails all
        that it has."""
        with self._lock:
            self._has_returned = True
        try:
            self._deal(found)
        except EnvError as error:
            self.fail(error)
        except Exception as error:  # what was returned may be of any class
            who, said = self._ground.who, error_text(error)
            failure = EnvError(f"{who} returned what cannot be read: {said}; {_RETURN}")
            failure.__cause__ = error
            self.end(failure)

    def _deal(self, found: Any) -> None:
        by_group = self._read(getattr(found, "samples", found))
        metrics = _numbers(getattr(found, "metrics", None), self._ground.who)
        owned = OwnedCalls(list(self._recorder.calls))
        with self._lock:
            groups = {n: (group, dict(group.tickets)) for n, group in self._groups.items()}
        for number, (group, tickets) in groups.items():
            self._settle(group.size, tickets, by_group.get(number), owned, metrics)
        with self._lock:
            self.has_settled |= bool(groups)
            self._end()

    def _read(self, found: Any) -> dict[int, dict[int, list[Any]]]:
        """The samples of each group, by the number of their episode in it."""
        who, read = self._ground.who, dict[int, dict[int, list[Any]]]()
        if not _is_list(found) or not all(map(_is_list, found)):
            raise EnvError(f"{who} returned {found!r:.80}; {_RETURN}")
        for group in found:
            if not (samples := _flat(group)):
                continue
            with self._lock:
                number = self._number_of(samples)
            if number in read:
                raise EnvError(f"{who} returned the group of sample {samples[0].index} twice")
            of_group = read[number] = {}
            for sample in samples:
                of_group.setdefault(sample.index % self._ground.group_size, []).append(sample)
        return read

    def _settle(
        self,
        size: int,
        tickets: dict[int, BatchEpisode],
        samples: dict[int, list[Any]] | None,
        owned: OwnedCalls,
        metrics: dict[str, float],
    ) -> None:
        who = f"{self._ground.who}, call {self.number}"
        if samples is None:
            _fail(tickets, GivenUpError(f"{who}: it took the group and did not return it"))
            return
        if missing := sorted(tickets.keys() - samples.keys()):
            words = f"it returned {len(samples)} of the {size} episodes of a group"
            _fail(tickets, EnvError(f"{who}: {words}, without {missing}; return all, or none"))
            return
        for index, ticket in tickets.items():
            mine = samples[index]
            try:
                read = [_returned(each, f"{who}: sample {n}") for n, each in enumerate(mine)]
                ticket.tell(Delivered(mine, owned.of(read), metrics))
            except EnvError as error:
                ticket.fail(error)

    def fail(self, error: EnvError, cause: BaseException | None = None) -> None:
        """The call has raised `cause`. Where that comes from a request that failed, this is why."""
        error.__cause__ = cause
        self.end((cause is not None and self._recorder.failure_behind(cause)) or error)

    def end(self, error: Exception) -> None:
        """All that it has fails with `error`."""
        with self._lock:
            self.failure = error
            for group in self._groups.values():
                self.has_settled = True
                _fail(group.tickets, error)
            self._end()

    def _end(self) -> None:
        self._groups = {}
        if self._token:
            self._first.there(self._ground.endpoint.close, self._token)
        self._token = ""


def _fail(tickets: dict[int, BatchEpisode], error: Exception) -> None:
    for ticket in tickets.values():
        ticket.fail(error)


def _is_list(found: object) -> bool:
    return isinstance(found, (list, tuple))


def _flat(group: Iterable[Any]) -> list[Any]:
    """The samples of a group, in which an episode may be a list of several."""
    return [s for each in group for s in (each if _is_list(each) else [each])]


def _returned(sample: Any, who: str) -> Returned:
    """See `returned`. Raises EnvError for a sample of another class that is no sample."""
    if lacks := missing(sample):
        raise EnvError(
            f"{who} is {type(sample).__name__} without {', '.join(lacks)}; return the samples of "
            "data_source.get_samples"
        )
    return returned(sample, who)


def _numbers(metrics: Any, who: str) -> dict[str, float]:
    """Raises EnvError for what is no number by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, dict):
        raise EnvError(f"{who} returned the metrics {metrics!r:.80}; they are numbers by name")
    for name, value in metrics.items():
        if not isinstance(name, str) or not _is_number(value):
            raise EnvError(f"{who} returned the metric {name!r:.80} = {value!r:.80}; give a number")
    return {name.removeprefix("rollout/"): float(value) for name, value in metrics.items()}


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


async def _of(ticket: BatchEpisode, args: Any, asked: Any) -> Any:
    return await ticket.worth(args, asked)
