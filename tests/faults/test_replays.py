"""The buffer's core does again what it did, from the same events; wall clocks have no say."""

import ast
import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from agentrl.buffer import BufferCore
from agentrl.buffer.events import Effect, FromPeer, Stored, Tick, Unreadable
from agentrl.types import EpisodeAssignment, Outcome
from agentrl.wire.messages import Capacity, LeaseRequest, PeerLost
from tests.faults.counts import count
from tests.unit.buffer_bench import Bench

Event = FromPeer | Stored | Unreadable | Tick
ROOT = Path(__file__).parents[2] / "agentrl"


class Recorded(Bench):
    """A bench that remembers what came, when, and what followed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.history: list[tuple[Event, float, list[Effect]]] = []

    def do(self, event: Event) -> list[Effect]:
        effects = super().do(event)
        self.history.append((event, self.now, list(effects)))
        return effects


def a_life(seed: int) -> Recorded:
    """A run with failures, lost workers, silence and pushes, as chance has it."""
    chance = random.Random(seed)
    bench = Recorded(
        n_samples_per_prompt=2, async_buffer_size=chance.randint(0, 3), max_staleness=3
    )
    names = ("w0", "w1")
    for name, role in (("driver", "driver"), ("learner", "learner")):
        bench.join(name, role)  # type: ignore[arg-type]
    for name in names:
        bench.say(bench.join(name, "worker"), Capacity(8))
    bench.publish(1, None, 0)
    lives = dict.fromkeys(names, 1)
    held: dict[str, list[EpisodeAssignment]] = {name: [] for name in names}
    lease = 0
    for _ in range(150):
        bench.now += chance.random()
        bench.supply()
        name = chance.choice(names)
        peer = f"{name}.{lives[name]}"
        held[name] += bench.assigned(peer)
        act = chance.randrange(12)
        if act == 0:
            bench.say("driver.1", PeerLost(name))
            lives[name] += 1
            held[name] = []
            bench.say(bench.join(name, "worker", str(lives[name])), Capacity(8))
        elif act == 1:
            bench.do(Tick())
        elif act == 2:
            bench.say("learner.1", LeaseRequest(lease + 1))
            if bench.core.state.leases.get(lease + 1):
                lease += 1
                bench.step(lease)
                bench.publish(lease + 1, lease, lease)
        elif held[name]:
            episode = held[name].pop(chance.randrange(len(held[name])))
            failed = chance.random() < 0.1
            bench.finish(peer, episode.id, outcome=Outcome.ENGINE_ERROR if failed else Outcome.DONE)
        bench.judge_all(peer)
    assert lease >= 2, "hardly anything happened"
    return bench


def replayed(bench: Recorded) -> list[list[Effect]]:
    core = BufferCore(bench.core.settings)
    return [list(core.handle(event, now)) for event, now, _ in bench.history]


def told(bench: Recorded) -> list[list[Effect]]:
    return [effects for _, _, effects in bench.history]


@pytest.mark.parametrize("life", range(count(20, 400)))
def test_r3_a_recorded_history_has_the_same_effects_again(life: int) -> None:
    bench = a_life(life)
    assert replayed(bench) == told(bench)
    assert len(bench.history) > 50


def test_k4_clocks_on_the_wall_may_jump(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, bench, true_time = random.Random(seed), a_life(3), time.time
    jumps = count(100, 1000)
    monkeypatch.setattr(time, "time", lambda: true_time() + chance.uniform(-3600, 3600))
    for _ in range(max(1, jumps // len(bench.history))):
        assert replayed(bench) == told(bench)


def test_k4_nothing_between_tool_and_gradient_reads_a_clock_on_the_wall() -> None:
    compares_clocks = ROOT / "cluster/node_facts.py"
    rooms = ("actors", "buffer", "cluster", "envs", "learner", "serving", "tools", "wire")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if path != compares_clocks
        for node in _calls(ast.parse(path.read_text()))
        if ast.unparse(node.func) in ("time.time", "datetime.now", "datetime.datetime.now")
    ]
    assert found == []


def _calls(tree: ast.AST) -> Iterable[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))
