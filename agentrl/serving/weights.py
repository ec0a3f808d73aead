"""`FleetWeightSink`: versioned weights from the learner to every engine.

    publish:  pause all -> begin -> buckets to the fleets -> end -> continue all

No engine continues before every engine has all buckets; the version label travels with the last
bucket, so an engine never calls half-new weights by a new version. Requests in flight are retracted
by the pause and go on under the new weights, with a cache that is computed anew; or they stay in
place and keep the cache that older weights filled (`keeps_cache`), but in the first push of a
sender, which does not know what engines have. If the source of the tensors raises, the engines stay
paused: they hold a mixture, which the next publish replaces.

Buckets go over collectives. With `shares_memory`, engines of this host read them from shared
memory. A member that is lost is reported (`on_lost`); its fleet gets all buckets again, over a new
collective, while the other fleets wait. It takes part again in the first publish that finds it
ready. A fleet's collective has the same name in every life of the learner. Calls come from one
thread; HTTP runs in an event loop of the sink's own thread.

Where engines share devices with the learner, a push is a part of a longer turn:

    release: pause all -> give up cache and weights      the learner trains
    take_weights: room for weights                       publish (nothing continues)
    serve: a cache again -> continue all                 the learner sleeps

An engine that is lost there ends the turn with a PushError: nobody knows which memory it has.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

import torch

from agentrl.clock import Clock, MonotonicClock
from agentrl.errors import PushError
from agentrl.serving.buckets import Bucket, BucketStream, StagingBuffers, new_buffer
from agentrl.serving.checksums import Fused
from agentrl.serving.collective import SenderGroup
from agentrl.serving.collective_fleet import CollectiveFleet
from agentrl.serving.control import EngineControl
from agentrl.serving.fleet import Fleet, failures_of, start_calls
from agentrl.serving.members import Members, NamedTensors, NoEngineError
from agentrl.serving.seals import Sent, dtype_name, sum_of
from agentrl.serving.shared_fleet import SharedFleet
from agentrl.serving.shared_memory import shared_buffer
from agentrl.types import EngineAddress, PushReport

__all__ = ["FleetWeightSink"]


class _Pass(NamedTuple):
    """What one pass over the buckets sent."""

    num_bytes: int
    fingerprint: Sent


#: What an engine gives up, by SGLang's names, and takes again before a push and after it.
_WEIGHTS, _REST = ("weights",), ("kv_cache", "cuda_graph")


class FleetWeightSink:
    """Implements `agentrl.types.WeightSink`. Own it with `with`, or call `close`.

    backend           "gloo", or "nccl" for engines on GPUs
    host              address at which engines reach this process
    shares_memory     engines at `host` read weights from memory that they share with this process
                      (with gloo for the others)
    ports             those it may listen on; none: any that is free
    bucket_bytes      --update-weight-buffer-size
    timeout_s         --update-weights-timeout: deadline of each call and each broadcast
    connect_s         deadline of a fleet's rendezvous, where that is sooner: it takes less than a
                      second, so one that does not come about is tried again
    fleet_size        --update-weights-fleet-size: engines in one collective
    engine_dtype      what engines keep weights in; None: unknown, so that `verify` compares what is
                      sent, and engines that a push did not change are not told of
    fused             parameters of the engines that are several of the tensors
    pushes_draft      a push holds what engines draft with as well
    tells_digests     engines are asked for a digest of their weights around each push, beside their
                      label
    on_lost           told of each engine that fell out of a push, in the calling thread
    key               what engines want to be shown
    keeps_cache       engines keep their caches over pushes (--kv-across-pushes keep)
    shares_devices    with the learner: turns are as above. `keeps_memory`: engines only pause
    """

    def __init__(
        self,
        engines: Sequence[EngineAddress],
        *,
        bucket_bytes: int,
        timeout_s: float,
        fleet_size: int,
        on_lost: Callable[[EngineAddress], None],
        backend: str = "gloo",
        host: str = "127.0.0.1",
        shares_memory: bool = False,
        ports: Sequence[int] = (),
        engine_dtype: torch.dtype | None = None,
        fused: Fused | None = None,
        tells_digests: bool = True,
        pushes_draft: bool = False,
        connect_s: float = 60.0,
        key: str | None = None,
        clock: Clock | None = None,
        shares_devices: bool = False,
        keeps_memory: bool = False,
        keeps_cache: bool = False,
    ) -> None:
        self._shares_devices, self._keeps_memory = shares_devices, keeps_memory
        self._keeps_cache, self._in_place = keeps_cache, False
        self._has_weights = True
        self._bucket_bytes = bucket_bytes
        self._timeout_s = timeout_s
        self._connect_s = min(connect_s, timeout_s)
        self._fleet_size = fleet_size
        self._backend = backend
        self._host, self._ports = host, ports
        self._shares_memory = shares_memory
        self._engine_dtype = engine_dtype
        self._fused = fused or {}
        self._clock = clock or MonotonicClock()
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        is_on_host = self._device.type == "cpu"
        self._staging = (
            StagingBuffers(shared_buffer if shares_memory else new_buffer) if is_on_host else None
        )
        self._members = Members(
            engines,
            timeout_s=timeout_s,
            key=key,
            clock=self._clock,
            on_lost=on_lost,
            engine_dtype=engine_dtype,
            fused=fused,
            tells_digests=tells_digests,
            pushes_draft=pushes_draft,
        )
        self._fleets: list[Fleet] = []
        for member in self._members.present:
            self._enlist(member)

    @property
    def engines(self) -> tuple[EngineAddress, ...]:
        """Engines that take part in the next publish."""
        return tuple(member.engine for fleet in self._fleets for member in fleet.members)

    def publish(self, version: int, tensors: NamedTensors) -> PushReport:
        """Send `tensors` (HF name, tensor) as `version` to every engine.

        Returns when the engines generate again. When none is left it waits for one to come back, up
        to the deadline. Raises PushError when none has, or when the sender itself fails; engines
        then stay paused until a publish succeeds.
        """
        buckets = BucketStream(tensors, self._bucket_bytes, self._fused, self._staging)

        def push(back: list[EngineControl]) -> PushReport:
            for member in back:
                self._enlist(member)
            try:
                return self._push(self._fleets, version, buckets)
            finally:
                self._leave_empty_fleets()

        return self._members.reach(push)

    def inspect(self) -> None:
        """Raise HealthError that names an engine whose weights are not those of its last push."""
        if self._has_weights:
            self._members.inspect()

    def release(self) -> None:
        """Hold all turns, and have every engine give up its cache and its weights."""
        self.inspect()
        self._each(self._fleets, EngineControl.pause)
        self._has_weights = self._keeps_memory
        if not self._keeps_memory:
            self._each(self._fleets, lambda member: member.release_memory((*_REST, *_WEIGHTS)))
            self._members.forget()

    def take_weights(self) -> None:
        """Have every engine take room for its weights, for the push that comes next."""
        if not self._keeps_memory:
            self._each(self._fleets, lambda member: member.take_memory(_WEIGHTS))

    def serve(self) -> None:
        """Have every engine take a cache, and go on with the turns that were held."""
        if not self._keeps_memory:
            self._each(self._fleets, lambda member: member.take_memory(_REST))
        self._each(self._fleets, EngineControl.resume)

    def verify(self, tensors: NamedTensors) -> None:
        """See `Members.verify`."""
        self._members.verify(tensors)

    def moved(self, engines: Sequence[EngineAddress]) -> None:
        """See `WeightSink`."""
        gone = self._members.moved(engines)
        for fleet in self._fleets:
            for member in [member for member in fleet.members if member in gone]:
                fleet.drop(member)

    def close(self) -> None:
        """Dissolve the fleets. Engines keep running, with the weights they have."""
        for fleet in self._fleets:
            fleet.dissolve()
        self._fleets = []
        self._members.close()

    def __enter__(self) -> "FleetWeightSink":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- one push ----------------------------------------------------------------------------

    def _push(self, fleets: list[Fleet], version: int, buckets: BucketStream) -> PushReport:
        started = self._clock.now()
        look = self._members.look() if self._has_weights else None
        first_pass = iter(buckets)
        head = next(first_pass, None)  # gathered before anyone is paused
        if head is None:
            raise PushError(f"version {version} has no tensors to send")
        self._each(fleets, EngineControl.require_alive)
        if look is not None:
            self._members.inspect(look)
        for fleet in fleets:
            self._restore(fleet)
        paused = self._clock.now()
        self._each(fleets, partial(EngineControl.pause, in_place=self._in_place))
        self._each(fleets, EngineControl.begin_update)
        sent = self._deliver(fleets, itertools.chain([head], first_pass), buckets, version)
        self._each(fleets, EngineControl.end_update)
        if not self._shares_devices:
            self._each(fleets, EngineControl.resume)
        names = tuple(member.name for fleet in fleets for member in fleet.members)
        if not names:
            raise NoEngineError(version)
        now = self._clock.now()
        self._has_weights, self._in_place = True, self._keeps_cache
        self._members.renew(version, sent.fingerprint)
        return PushReport(version, now - paused, now - started, sent.num_bytes, names)

    def _deliver(
        self,
        fleets: list[Fleet],
        first_pass: Iterator[Bucket],
        buckets: BucketStream,
        version: int,
    ) -> "_Pass":
        """All buckets to all fleets, again to those that lose a member; what one pass sent."""
        sent = _Pass(0, ())
        source = first_pass
        pending = fleets
        while pending := [fleet for fleet in pending if self._restore(fleet)]:
            sent = max(sent, self._send(pending, source, version), key=lambda one: one.num_bytes)
            source = iter(buckets)
            pending = [fleet for fleet in pending if not fleet.connected]
            if pending and self._staging is not None:
                self._staging.abandon()
        for fleet in fleets:
            fleet.delivered()
        return sent

    def _send(self, fleets: list[Fleet], buckets: Iterator[Bucket], version: int) -> "_Pass":
        """One pass over the buckets, to all fleets in step; a fleet that fails drops out of it. The
        next bucket is gathered while engines load this one."""
        num_bytes, sums, shows = 0, list[int](), True
        kept = None if self._engine_dtype is None else dtype_name(self._engine_dtype)
        bucket = next(buckets, None)
        while bucket is not None and (active := [fleet for fleet in fleets if fleet.connected]):
            payload = bucket.payload.to(self._device)
            label = str(version) if bucket.last else None
            for fleet in active:
                fleet.start(bucket, payload, label, keeps_cache=self._in_place)
            num_bytes += payload.nbytes
            shows &= set(bucket.dtypes) == {kept}
            try:
                bucket = next(buckets, None)
                sums.append(sum_of(payload))
            finally:
                for fleet in active:
                    fleet.finish()
        return _Pass(num_bytes, tuple(sums) if shows else None)

    def _restore(self, fleet: Fleet) -> bool:
        """Connect the fleet, without the members that are lost; False when none is left."""
        while fleet.members and not fleet.connected:
            for member, reason in fleet.repair().items():
                self._lose(member, reason)
            if fleet.members:
                fleet.connect()
        return bool(fleet.members)

    def _each(self, fleets: list[Fleet], call: Callable[[EngineControl], Awaitable[None]]) -> None:
        """The same call to every member at once; those that fail it are lost."""
        owners = {member: fleet for fleet in fleets for member in fleet.members}
        for member, error in failures_of(start_calls(self._members.portal, owners, call)).items():
            owners[member].drop(member)
            self._lose(member, error)

    def _leave_empty_fleets(self) -> None:
        """Close what is left of them: the next fleet of that name needs the name."""
        for fleet in self._fleets:
            if not fleet.members:
                fleet.dissolve()
        self._fleets = [fleet for fleet in self._fleets if fleet.members]

    # ---- members -----------------------------------------------------------------------------

    def _enlist(self, member: EngineControl) -> None:
        is_local = self._shares_memory and urlsplit(member.engine.url).hostname == self._host
        for fleet in self._fleets:
            if isinstance(fleet, SharedFleet):
                fits = is_local
            else:
                fits = not is_local and len(fleet.members) < self._fleet_size
            if fits:
                fleet.enlist(member)
                return
        self._fleets.append(self._new_fleet(member, is_local=is_local))

    def _new_fleet(self, member: EngineControl, *, is_local: bool) -> Fleet:
        portal = self._members.portal
        if is_local:
            return SharedFleet([member], name="agentrl-memory", portal=portal)
        taken = {fleet.name for fleet in self._fleets}
        names = (f"agentrl-fleet-{number}" for number in itertools.count())
        name = next(name for name in names if name not in taken)
        return CollectiveFleet([member], name=name, portal=portal, open_group=self._open_group)

    def _open_group(self, name: str) -> SenderGroup:
        return SenderGroup(
            name,
            host=self._host,
            ports=self._ports,
            backend=self._backend,
            timeout_s=self._timeout_s,
            connect_s=self._connect_s,
        )

    def _lose(self, member: EngineControl, reason: Exception) -> None:
        if self._shares_devices:
            raise PushError(
                f"{member.name} was lost in a turn on devices that it shares with the learner: "
                f"{reason}; engines and learner are started again"
            ) from reason
        self._members.lose(member, reason)
