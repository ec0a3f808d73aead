"""Starting processes, and starting them again: what each kind needs so that the run goes on.

    learner rank       the buffer is told, for its lease may be why; all ranks start together
    engine, router     started, an engine of several nodes with all its parts; once it answers, the
                       learner is told, which gives late engines the weights and routes whoever has
                       them; a learner that has ended meanwhile is started again, for the first
                       thing that it does is just that
    worker             the buffer is told first, so that its episodes are queued again
    buffer, service    started; whoever spoke to it asks again
    copy of a service  the same; after its node was lost, agent workers start once it is ready

Where learner and engines share devices (`--colocate`), all engines and all learner ranks end and
start together: a process that is new cannot know which memory the others have.

Processes of a lost node start again once their slot has another place (`rescheduling.py`), engines
at another address: the specification tells it to processes that start later, and the question for
weights tells it to all others. If one of the processes that live and die together is lost, the
others do not run; they all start when the last of them has a place.

Of a process that was replaced meanwhile nothing more needs to be done. A name is not enough to say
which is meant: each process is told an incarnation of its own, and says it to the buffer.
"""

import logging
import signal
import uuid
from collections.abc import Collection, Sequence
from contextlib import suppress

import anyio
import msgspec

from agentrl.cluster.engine_parts import engine_of
from agentrl.cluster.events import RunState
from agentrl.cluster.host import ExitNotice, ProcessOrder
from agentrl.cluster.kinds import KINDS, Consequence
from agentrl.cluster.layout import INCARNATION, RUN_MARK
from agentrl.cluster.moving import moved
from agentrl.cluster.placement import Cluster
from agentrl.cluster.requests import Requests
from agentrl.cluster.roster import Roster
from agentrl.cluster.routing import lacks_route, unroute
from agentrl.cluster.services import until_ready
from agentrl.cluster.spec import RunSpec
from agentrl.cluster.supervision import counts_against_lease
from agentrl.cluster.threads import in_thread
from agentrl.errors import EnvironmentSetupError, SlotLostError
from agentrl.wire.messages import PeerLost, Republish

__all__ = ["Processes"]

_LOG = logging.getLogger(__name__)

#: The rank that speaks to the engines.
_TOLD = "learner-0"
#: The question for weights: whether a learner has heeded it, it and the buffer know.
_WEIGHTS = "weights"


class _Life(msgspec.Struct, frozen=True):
    """The process that bears a name now. `learner`: in which life of the learner it was started."""

    pid: int
    incarnation: str
    learner: int


class Processes:
    """The processes of a run, by name."""

    def __init__(
        self,
        cluster: Cluster,
        spec: RunSpec,
        orders: Sequence[ProcessOrder],
        requests: Requests,
        state: RunState,
    ) -> None:
        self._cluster = cluster
        self.roster = Roster(spec, orders)
        self._requests = requests
        self._state = state
        self._lives: dict[str, _Life] = {}
        self._learner_life = 1
        #: What came back since the learner was started, and may lack weights or a route.
        self._late: set[str] = set()
        #: Times that weights were asked for.
        self._num_asked = 0
        #: Whether engines are elsewhere, or others, than processes were told that have run since.
        self._has_moved = False
        #: Processes whose start is ordered and not answered.
        self._starting: set[str] = set()
        self._one_at_a_time = anyio.Lock()

    @property
    def names(self) -> list[str]:
        """In starting order."""
        return list(self.roster.orders)

    @property
    def learners(self) -> list[str]:
        """The ranks of the learner."""
        return self.roster.of_kind("learner")

    async def ready(self, names: Collection[str]) -> None:
        """Wait until those that say when they are ready do. Raises EnvironmentSetupError."""
        await until_ready(self.roster, names)

    async def start(self, name: str) -> None:
        """Start a process that is not running."""
        order, incarnation = self.roster.orders[name], uuid.uuid4().hex
        marks = {RUN_MARK: self.roster.spec.run_dir, INCARNATION: incarnation}
        marked = msgspec.structs.replace(order, env=order.env | marks)
        self._starting.add(name)
        try:
            pid = await in_thread(self._cluster.start, marked)
            self._lives[name] = _Life(pid, incarnation, self._learner_life)
        finally:
            self._starting.discard(name)
            self._state.notify()
        self._state.started(name)
        _LOG.info("started %s (pid %s)", name, pid)

    async def known(self, notice: ExitNotice) -> None:
        """Wait until it is known which process has just been started, if one of that name is: its
        end may be told before its start."""
        if not notice.expected:
            await self._state.wait(lambda _: notice.name not in self._starting)

    def learner_life(self, notice: ExitNotice) -> int | None:
        """In which life of the learner (from 1) this one was started; None for one replaced."""
        life = self._lives.get(notice.name)
        return life.learner if life is not None and life.pid == notice.pid else None

    async def signal(self, name: str, incarnation: str | None, number: int) -> bool:
        """Send a signal to a process, not to one in its place (None: to whichever bears the name
        now). Whether it was there."""
        life = self._lives.get(name)
        if life is None or incarnation not in (None, life.incarnation):
            return False
        return bool(await in_thread(self._cluster.signal, name, number, life.pid))

    def left_without(self, names: Collection[str]) -> list[str] | None:
        """The node of `names` is gone, and they with it. Engines and agent workers that are left;
        None where the run cannot do without one of those that are lost."""
        self.roster.lost |= set(names)
        return self.roster.left if self.can_go_on_without(names) else None

    def can_go_on_without(self, names: Collection[str]) -> bool:
        """Whether others of each sort are left that are not away."""
        return self.roster.can_go_on_without(names)

    def can_come_back(self, names: Collection[str]) -> bool:
        """Whether these can be started on another node: no file or address is tied to their own."""
        return all(KINDS[self.roster.kind(name)].moves for name in names)

    @property
    def spec(self) -> RunSpec:
        """What a process that is started from now on is told."""
        return self.roster.told

    async def tell_lost(self, names: Collection[str], spec_file: str) -> None:
        """Tell the router, the buffer and workers of engines and workers that are lost or stay
        down, and processes that start from now on; end those that do not live without them."""
        async with self._one_at_a_time:
            kinds = {name: self.roster.kind(name) for name in names}
            for name, kind in kinds.items():
                if kind == "engine":
                    await self.unroute(engine_of(name))
                    await self._end_parts(name)
                elif kind == "worker" and (life := self._lives.get(name)) is not None:
                    await self._requests.tell(PeerLost(name, life.incarnation))
                if kind != "learner":  # who asks for weights asks which life of the learner it is
                    self._lives.pop(name, None)
            if self.roster.together.intersection(names):
                await self._end_together()
            await self._write_spec(spec_file)
            if "eval-engine" in kinds.values() and self.spec.eval_engines:
                self._has_moved = True  # workers play on those that are left
                await self._requests.tell(self._next_question())

    async def try_again(self, name: str, spec_file: str) -> None:
        """Start a process that stays down. Raises SlotLostError."""
        async with self._one_at_a_time:
            if name not in self.roster.down:
                return
            self.roster.down.discard(name)
            self._has_moved |= KINDS[self.roster.kind(name)].serves
            await self._write_spec(spec_file)
            await self._start_whole(name)

    async def _write_spec(self, path: str) -> None:
        spec = msgspec.json.encode(self.spec)
        await in_thread(self._cluster.write_file, path, spec)

    async def come_back(self, names: Collection[str], spec_file: str) -> list[str]:
        """Start processes whose slot has a place again, on their new node; those that live and die
        together once all of them have one, from the newest checkpoint. Returns their names, those
        of engines with their address. Raises SlotLostError."""
        async with self._one_at_a_time:
            roster = self.roster
            roster.spec, roster.orders = await in_thread(
                moved, roster.spec, roster.orders, names, self._cluster
            )
            roster.lost -= set(names) - roster.unused - roster.after_copies
            roster.down -= set(names)
            await self._write_spec(spec_file)
            urls = {engine.name: engine.url for engine in roster.spec.all_engines}
            self._has_moved |= not urls.keys().isdisjoint(names)
            for name in names:
                if name not in self.roster.together:
                    await self._start_whole(name)
            if self.roster.together.intersection(names):
                if self.roster.spec.config.colocate:
                    # Workers hear of it; the first push of the new learner is an answer.
                    await self._requests.tell(self._next_question())
                    await self._restart_engines()
                await self._restart_learner()
        urls |= {name: copy.url for name, copy in self.roster.spec.copies.items()}
        there = [name for name in names if name not in self.roster.unused]
        return [f"{name} ({urls[name]})" if name in urls else name for name in there]

    async def serve_again(self, names: Collection[str]) -> None:
        """Have the engines of `names` get weights as soon as they are ready (the learner sees to
        those that it shares devices with), and agent workers start once the copies of services
        that they use are."""
        for name in names:
            kind = self.roster.kind(name)
            if name in self.roster.after_copies:
                await self._start_after_copies(name)
            elif kind == "engine" and not self.roster.spec.config.colocate:
                await self._serve(engine_of(name))
            elif kind == "eval-engine":  # workers hear where it is
                await self._requests.tell(self._next_question())

    async def _start_after_copies(self, worker: str) -> None:
        """Start an agent worker that was lost. A copy that is not ready in time is killed; then it
        is started again."""
        roster = self.roster
        while worker in roster.lost:
            await self._state.wait(lambda _: roster.has_copies(worker) or worker not in roster.lost)
            lives = {name: self._lives.get(name) for name in roster.used_by(worker)}
            if not all([await self._is_ready(name) for name in lives]):
                continue
            async with self._one_at_a_time:
                is_same = lives == {name: self._lives.get(name) for name in roster.used_by(worker)}
                if worker in roster.lost and roster.has_copies(worker) and is_same:
                    roster.lost.discard(worker)
                    with suppress(SlotLostError):  # who watches the slot decides
                        await self.start(worker)

    async def _is_ready(self, name: str) -> bool:
        """Whether a process gets ready in time; one that does not is killed."""
        life = self._lives.get(name)
        try:
            await self.ready([name])
        except EnvironmentSetupError as error:
            _LOG.error("%s; it is killed", error)
            with suppress(SlotLostError):  # who watches the slot decides
                await self.signal(name, life.incarnation if life else None, signal.SIGKILL)
            return False
        return True

    async def _serve(self, name: str) -> None:
        """Have `name` get weights, or a route, once it is ready. An engine that is not in time is
        killed if others are left; then it is started again. Raises EnvironmentSetupError."""
        life = self._lives.get(name)
        while life is not None and self._lives.get(name) is life:
            try:
                await self.ready([name])
            except EnvironmentSetupError as error:
                if self._lives.get(name) is not life:
                    return  # whoever started another waits for that one
                if not self.can_go_on_without([name]):
                    raise
                _LOG.error("%s; it is killed", error)
                with suppress(SlotLostError):  # who watches the slot decides
                    if await self.signal(name, life.incarnation, signal.SIGKILL):
                        return
            else:
                await self.ask_for_weights(name)
                return

    async def restart(self, notice: ExitNotice, consequence: Consequence) -> None:
        """Start again what `notice` tells of."""
        async with self._one_at_a_time:
            life = self._lives.get(notice.name)
            if life is None or life.pid != notice.pid:
                return
            shares_devices = self.roster.spec.config.colocate
            match consequence:
                case Consequence.RESTART_LEARNER:
                    await self.tell_ended(notice)
                    if shares_devices:
                        await self._restart_engines()
                    await self._restart_learner()
                case Consequence.RESTART_ENGINE if shares_devices:
                    await self._restart_engines()
                    await self._restart_learner()
                case Consequence.RESTART_ENGINE:
                    await self._restart_engine(notice.name)
                case _:
                    if notice.kind == "worker":
                        await self._requests.tell(PeerLost(notice.name, life.incarnation))
                    await self.start(notice.name)
        if consequence is Consequence.RESTART_ROUTER or (
            consequence is Consequence.RESTART_ENGINE and not shares_devices
        ):
            await self._serve(engine_of(notice.name))

    async def tell_ended(self, notice: ExitNotice) -> None:
        """Tell the buffer of a learner that has ended, and whether its lease may be why: whichever
        of its ranks was first, one of them asks for leases. None that came after it is meant."""
        source, failed = self._lives[_TOLD], counts_against_lease(notice)
        if self.learner_life(notice) == source.learner:
            await self._requests.tell(PeerLost(_TOLD, source.incarnation, failed))

    async def learner_ended(self) -> None:
        """The learner has done its work. What it was told last it may not have heeded any more: if
        the router lacks an engine that came back, the learner is started again for it."""
        learner, late = self._lives[_TOLD], self._late
        if late and await lacks_route(self.spec, late):
            await self._begin_again(learner)

    async def ask_for_weights(self, name: str) -> None:
        """Have the learner give its weights to the engines: `name` may lack them."""
        if name in self.roster.gone:
            return
        self._late.add(name)
        if self._state.learner_done:
            await self._begin_again(self._lives[_TOLD])
        else:
            await self._requests.ask(_WEIGHTS, self._next_question())

    def _next_question(self) -> Republish:
        self._num_asked += 1
        return Republish(self._num_asked, self.spec.all_engines if self._has_moved else [])

    async def _begin_again(self, learner: _Life) -> None:
        """Start the learner again that has ended, unless somebody has done so."""
        async with self._one_at_a_time:
            if self._lives[_TOLD] == learner:
                _LOG.info("the learner has ended: it is started again to hand out the weights")
                await self._restart_learner()

    async def _end_together(self) -> None:
        """The devices of the lost may be given to others."""
        await in_thread(self._cluster.stop, sorted(self.roster.together), 0.0)
        for engine in self.spec.engines if self.roster.spec.config.colocate else []:
            await self.unroute(engine.name)

    async def _restart_learner(self) -> None:
        if self.roster.together & self.roster.lost:
            return
        await in_thread(self._cluster.stop, self.learners, 0.0)
        self._learner_life += 1
        self._state.learner_done = False
        self._late = set()
        self._requests.drop(_WEIGHTS)
        for rank in self.learners:
            await self.start(rank)

    async def _restart_engine(self, name: str) -> None:
        """With all its parts: the ranks of those that are left wait for the lost ones."""
        await self.unroute(engine_of(name))
        await self._start_whole(name)

    async def _start_whole(self, name: str) -> None:
        """Start a process, with the other parts of its engine; not while one of these is lost."""
        if name in self.roster.gone:
            return
        await self._end_parts(name)
        for part in self.roster.parts(name):
            await self.start(part)

    async def _end_parts(self, name: str) -> None:
        """End the other parts of an engine."""
        others = [
            part
            for part in self.roster.parts(name)
            if part != name and part not in self.roster.lost
        ]
        if running := [part for part in others if self._lives.pop(part, None)]:
            await in_thread(self._cluster.stop, running, 0.0)

    async def _restart_engines(self) -> None:
        """All of them, without the learner, whose devices they share. It waits for them when it is
        started."""
        if self.roster.together & self.roster.lost:
            return
        engines = self.roster.of_kind("engine")
        await in_thread(self._cluster.stop, [*self.learners, *engines], 0.0)
        for name in engines:
            if name == engine_of(name):
                await self.unroute(name)
            await self.start(name)

    async def unroute(self, name: str) -> None:
        """Take an engine out of the router: requests must not go where nobody is."""
        await unroute(self.roster.spec, name)
