"""Recorded event logs of the buffer's core: the same log in, the same effects out.

A log holds every event that a core was really told, with the time, and beside each the effects that
came out: of simulated runs with faults and with evaluations beside them, and of one run of the real
server. A core is lost and built again from its ledger where that happened in the run.

    python -m tests.property.buffer_logs              compare every log; tells the first differences
    python -m tests.property.buffer_logs write        keep each log's events; replace its effects
    python -m tests.property.buffer_logs record       play the runs again; replace everything

A changed effect is a changed rule: whoever writes or records says which, and why.
"""

import json
import lzma
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from agentrl.buffer import BufferSettings, run_buffer, server
from agentrl.buffer.core import BufferCore
from agentrl.buffer.events import Effect, FromPeer, Input, Persist, Stored, Tick, Unreadable
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import LedgerState, Row
from agentrl.sim import shell
from agentrl.sim.faults import plan_faults
from agentrl.sim.run import build
from agentrl.sim.scenario import Scenario
from agentrl.sim.world import World
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    EpisodeReport,
    Outcome,
    SamplingParams,
    StopReason,
    Task,
    TrajectoryMeta,
    VersionRow,
)
from agentrl.wire.messages import (
    AnnounceVersion,
    Drain,
    Evaluate,
    Event,
    Fetch,
    Finished,
    Lease,
    LeaseRequest,
    MayPush,
    NoMoreLeases,
    PushDone,
    PushGranted,
    Retire,
    Stepped,
)
from agentrl.wire.peer import BufferPeer
from tests.integration.buffer_peers import Worker, columns_of, feed, small_run
from tests.property.test_sim_faults import scenario_of

__all__ = ["FOLDER", "Log", "difference", "names", "read"]

FOLDER = Path(__file__).with_name("buffer_logs")
#: Seeds of `test_sim_faults`; those of the second line have evaluations beside them.
PLAIN = (0, 3, 17)
EVALUATED = (1, 16, 22, 33)

#: Characters of an effect that a difference shows.
SHOWN = 2000

#: Names of messages in the logs, and those that they have today.
RENAMED = {"Judge": "ScoreGroup", "PushGrant": "PushGranted"}

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (FromPeer, Stored, Unreadable, Tick)
}


class Line(msgspec.Struct, array_like=True):
    """An event, or the start of a core: then `body` lists the segments of its store. `effects` are
    what came out, as text."""

    now: float
    kind: str
    body: msgspec.Raw
    effects: list[str]


class Log(msgspec.Struct):
    """What the cores of one run were told."""

    settings: BufferSettings
    lines: list[Line]


def names() -> list[str]:
    """The logs there are."""
    return sorted(path.stem for path in FOLDER.glob("*.xz"))


def read(name: str) -> Log:
    """The log of this name, with its messages under the names of today."""
    log = msgspec.msgpack.decode(lzma.decompress(_path(name).read_bytes()), type=Log)
    for line in log.lines:
        line.effects = [_renamed(effect) for effect in line.effects]
    return log


def _renamed(effect: str) -> str:
    for old, new in RENAMED.items():
        effect = effect.replace(f'{{"{old}": ', f'{{"{new}": ')
    return effect


def difference(log: Log) -> str | None:
    """The first event whose effects are not those of the log, with both; None: there is none."""
    for position, (line, found) in enumerate(zip(log.lines, replayed(log), strict=True)):
        if found != line.effects:
            gone = [f"\n  - {each[:SHOWN]}" for each in line.effects if each not in found]
            new = [f"\n  + {each[:SHOWN]}" for each in found if each not in line.effects]
            what = gone + new or ["\n  the same effects in another order"]
            told = str(msgspec.msgpack.decode(line.body))[:SHOWN]
            return f"event {position} at {line.now}: {line.kind} {told}{''.join(what)}"
    return None


def replayed(log: Log) -> Iterator[list[str]]:
    """The effects of each line, from today's core on a real ledger."""
    with (
        tempfile.TemporaryDirectory(prefix="agentrl-log-") as folder,
        Ledger(Path(folder) / "ledger.db") as ledger,
    ):
        core, rows = BufferCore(log.settings), list[Row]()
        for line in log.lines:
            if line.kind == "start":
                ledger.commit(rows)
                rows.clear()
                there = msgspec.msgpack.decode(line.body, type=set[int])
                state = ledger.load().without_lost_segments(there)
                core = BufferCore(log.settings, state, line.now)
                yield []
                continue
            event = msgspec.msgpack.decode(line.body, type=_KINDS[line.kind])
            effects = core.handle(event, line.now)
            rows += [effect.row for effect in effects if isinstance(effect, Persist)]
            yield texts(effects)


def texts(effects: list[Effect]) -> list[str]:
    """Effects as text. A field that has its default is left out: a new one changes nothing."""
    return [json.dumps(_plain(effect), sort_keys=True) for effect in effects]


def _plain(value: object) -> object:
    match value:
        case msgspec.Struct():
            fields = msgspec.structs.fields(value)
            told = {f.name: getattr(value, f.name) for f in fields}
            kept = {f.name: _plain(told[f.name]) for f in fields if told[f.name] != _default(f)}
            return {type(value).__name__: kept}
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case float() if value.is_integer():  # a ledger reads 9.0 where 9 was counted
            return int(value)
    return value


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _path(name: str) -> Path:
    return FOLDER / f"{name}.xz"


def _write(name: str, log: Log) -> None:
    FOLDER.mkdir(exist_ok=True)
    packed = lzma.compress(msgspec.msgpack.encode(log), preset=9 | lzma.PRESET_EXTREME)
    _path(name).write_bytes(packed)
    print(f"{name}: {len(log.lines)} events, {len(packed)} bytes")  # noqa: T201


# ---- recording ----


def recorded(run: Callable[[], object]) -> Log:
    """Play a run whose cores write down what they are told."""
    logs: list[Log] = []

    class Recorder(BufferCore):
        def __init__(
            self, settings: BufferSettings, ledger: LedgerState | None = None, now: float = 0.0
        ) -> None:
            super().__init__(settings, ledger, now)
            if not logs:
                logs.append(Log(settings, []))
            there = sorted(ledger.segments) if ledger is not None else []
            self._note(now, "start", there, [])

        def handle(self, event: Input, now: float) -> list[Effect]:
            effects = super().handle(event, now)
            self._note(now, type(event).__name__, event, texts(effects))
            return effects

        def _note(self, now: float, kind: str, body: object, effects: list[str]) -> None:
            raw = msgspec.Raw(msgspec.msgpack.encode(body))
            logs[0].lines.append(Line(now, kind, raw, effects))

    for user in (shell, server):
        setattr(user, "BufferCore", Recorder)  # noqa: B010
    try:
        run()
    finally:
        for user in (shell, server):
            setattr(user, "BufferCore", BufferCore)  # noqa: B010
    return logs[0]


def simulated(scenario: Scenario, *, evaluated: bool) -> None:
    """A simulated run; `evaluated`: with evaluations beside training."""
    world, processes = build(scenario)
    processes.start()
    plan_faults(world, processes)
    if evaluated:
        _evaluate_now_and_then(world, random.Random(f"{scenario.seed}/evaluations"))
    world.timeline.run()


def _evaluate_now_and_then(world: World, rng: random.Random) -> None:
    """Orders of the driver and questions of the learner, for as long as the run is young. An order
    that a lost buffer has forgotten is given again."""
    orders: list[Evaluate] = []
    left = 40

    def again() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            return
        if rng.random() < 0.5 or not orders:
            orders.append(_order(rng, len(orders), world.scenario.n_samples_per_prompt))
        for name, peer in list(world.shell.peers.items()):
            if name.startswith("driver"):
                peer.deliver(rng.choice(orders[-2:]))
            elif name.startswith("learner") and rng.random() < 0.5:
                peer.send(MayPush(left))
        world.timeline.after(rng.expovariate(1 / 4.0), again)

    world.timeline.after(1.0, again)


def _order(rng: random.Random, number: int, samples: int) -> Evaluate:
    tasks = [Task(str(10**6 + 100 * number + i), {}) for i in range(rng.randint(0, 6))]
    return Evaluate(
        rng.choice(["heldout", "hard"]), f"e{number}", tasks, rng.randint(1, samples),
        SamplingParams(temperature=0.0), seed=number, beside=rng.random() < 0.7,
        pinned=rng.random() < 0.5,
    )  # fmt: skip


class Player(Worker):
    """Plays evaluation episodes too."""

    async def _play(self, episode: EpisodeAssignment) -> None:
        if episode.evaluation is None:
            await super()._play(episode)
            return
        await anyio.sleep(0.01)
        version, id = self._versions[-1], episode.id
        meta = TrajectoryMeta(5, 5, 1, 0.5, [(version, 5)])
        report = EpisodeReport(id, Outcome.DONE, StopReason.TERMINATED, [meta], 0.5)
        await self._peer.deliver(Finished(report), columns_of(EpisodeId("0", id.index), 5, version))


async def served() -> None:
    """A run of the real server: every push asks first, and evaluations are pinned beside it."""
    versions = [1]
    with tempfile.TemporaryDirectory(prefix="agentrl-log-") as folder:
        settings = small_run(Path(folder))
        settings = msgspec.structs.replace(settings, address=f"ipc://{folder}/b.sock")
        async with anyio.create_task_group() as serving:
            address = await serving.start(_serve, settings, Path(folder))
            async with (
                BufferPeer(address, role="learner", name="learner") as learner,
                BufferPeer(address, role="driver", name="driver") as driver,
                BufferPeer(address, role="worker", name="w0") as first,
                BufferPeer(address, role="worker", name="w1") as second,
                anyio.create_task_group() as playing,
            ):
                playing.start_soon(feed, driver, list[Event]())
                for seed, peer in enumerate((first, second)):
                    playing.start_soon(Player(peer, versions, seed).run)
                await _learn(learner, driver, versions)
                await driver.deliver(Drain("the run is long enough"))
                await driver.flush(30)
                playing.cancel_scope.cancel()
            serving.cancel_scope.cancel()


async def _serve(settings: BufferSettings, folder: Path, *, task_status: Any) -> None:
    await run_buffer(settings, folder, task_status=task_status)


async def _learn(learner: BufferPeer, driver: BufferPeer, versions: list[int]) -> None:
    await learner.deliver(PushDone(VersionRow(1, None, 0), 0))
    for number in range(1, 9):
        await learner.send(LeaseRequest(number))
        answer = await _answer(learner)
        if not isinstance(answer, Lease):
            return
        rows = [row for group in answer.header.groups for row in group.trajectories]
        await learner.send(Fetch(number, [row.payload for row in rows]))
        await learner.deliver(Stepped(number, False, 0.0, 0.0, 0.1, {"loss": 1.0}))
        tasks = [Task(f"q{i}", {}) for i in range(3)]
        await driver.deliver(
            Evaluate("heldout", f"e{number}", tasks, 2, SamplingParams(), beside=True, pinned=True)
        )
        await driver.flush(30)
        await learner.send(MayPush(number + 1))
        await _answer(learner)
        row = VersionRow(number + 1, number, number)
        await learner.deliver(AnnounceVersion(row))
        versions.append(number + 1)
        await learner.deliver(PushDone(row, number))
        if number % 2 == 0:
            await learner.deliver(Retire(number))
    await learner.flush(30)


async def _answer(learner: BufferPeer) -> object:
    while True:
        message, _ = await learner.receive()
        if isinstance(message, Lease | NoMoreLeases | PushGranted):
            return message


def _record() -> None:
    for seed in PLAIN:
        run = partial(simulated, scenario_of(seed), evaluated=False)
        _write(f"faults-{seed}", recorded(run))
    for seed in EVALUATED:
        run = partial(simulated, scenario_of(seed), evaluated=True)
        _write(f"evaluations-{seed}", recorded(run))
    _write("server", recorded(partial(anyio.run, served)))


def _rewrite(name: str) -> None:
    log = read(name)
    for line, effects in zip(log.lines, list(replayed(log)), strict=True):
        line.effects = effects
    _write(name, log)


def main(argv: list[str]) -> int:
    """The command; returns 1 when an effect differs."""
    if argv == ["record"]:
        _record()
    elif argv == ["write"]:
        for name in names():
            _rewrite(name)
    found = {name: difference(read(name)) for name in names()}
    differing = {name: text for name, text in found.items() if text is not None}
    for name, text in differing.items():
        print(f"{name}: {text}")  # noqa: T201
    print(f"{len(differing)} of {len(found)} logs differ")  # noqa: T201
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
