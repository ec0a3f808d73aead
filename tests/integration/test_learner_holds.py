"""The learner's loop while evaluations hold its pushes back, in a world that grants them late."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.collective_request import TURN_S
from agentrl.learner.loop import LearnerOutcome, run_learner
from agentrl.wire.messages import (
    MayPush,
    Message,
    PushDone,
    PushGranted,
    Republish,
    Retire,
    Stepped,
)
from tests.collectives import Threads
from tests.integration.learner_world import World, WorldPeer
from tests.integration.toy_backend import ToyBackend
from tests.manual_clock import ManualClock


class HoldingPeer(WorldPeer):
    """Grants a push after `rounds` silent turns; `asked` holds the versions of the requests. An
    engine comes late when that of `republish_at` is made."""

    def __init__(
        self, world: World, clock: ManualClock, rounds: float, republish_at: int | None = None
    ) -> None:
        super().__init__(world, clock)
        self._republish_at = republish_at
        self.asked: list[int] = []
        self._rounds = self._left = rounds

    def send(self, message: Message, /) -> None:
        if not isinstance(message, MayPush):
            super().send(message)
        elif not self.asked or self.asked[-1] != message.version:
            self.asked.append(message.version)
            self._left = self._rounds
            if message.version == self._republish_at:
                self._answers.append((Republish(1), []))
            self._answers.append((PushGranted(message.version), []))

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        if self._answers and isinstance(self._answers[0][0], PushGranted) and self._left > 0:
            self._left -= 1
            self._clock.advance(timeout_s)
            raise TimeoutError
        return super().receive(timeout_s)


def learn_held(
    world: World,
    folder: Path,
    *,
    rounds: float = 2,
    num_ranks: int = 1,
    should_stop: Callable[[HoldingPeer], bool] = lambda peer: False,
    republish_at: int | None = None,
    **flags: Any,
) -> tuple[LearnerOutcome, HoldingPeer]:
    defaults: dict[str, Any] = {"eval_mode": "pinned", "eval_interval": 1, "max_staleness": 8}
    cfg = RunConfig(save=str(folder / "save"), save_hf="out", **(defaults | flags))
    group, peers = Threads(num_ranks), list[HoldingPeer]()
    lock = threading.Lock()

    def run(rank: int) -> LearnerOutcome:
        backend, clock = ToyBackend(group, rank), ManualClock()
        peer = HoldingPeer(world, clock, rounds, republish_at)
        if backend.is_source:
            backend.on_save = world.delivered.append
            with lock:
                peers.append(peer)
        return run_learner(
            load_algorithm(cfg),
            backend,
            peer,
            world if backend.is_source else None,
            clock=clock,
            should_stop=lambda: should_stop(peer),
        )

    with ThreadPoolExecutor(num_ranks) as threads:
        outcomes = list(threads.map(run, range(num_ranks)))
    assert len(set(map(repr, outcomes))) == 1
    return outcomes[0], peers[0]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_push_but_the_first_is_asked_for_and_its_wait_is_counted(
    tmp_path: Path, num_ranks: int
) -> None:
    world = World([2] * 3, mark_last=False)
    _, peer = learn_held(world, tmp_path, update_weights_interval=2, num_ranks=num_ranks)
    assert [message.row.version for message in world.of(PushDone)] == [0, 1, 2]
    assert peer.asked == [1, 2], "the last push, at the end of the run, is no exception"
    holds = [message.metrics["perf/eval_hold_s"] for message in world.of(PushDone)]
    assert holds[0] == 0
    assert holds[1] >= 2 * TURN_S
    assert holds[2] >= 2 * TURN_S
    waits = [message.metrics["perf/lease_wait_s"] for message in world.of(Stepped)]
    assert waits == [1.0] * 3, "a hold is no wait for a lease"


def test_evaluations_beside_hold_nothing(tmp_path: Path) -> None:
    world = World([2] * 3)
    _, peer = learn_held(world, tmp_path, eval_mode="beside")
    assert peer.asked == []
    assert [message.metrics["perf/eval_hold_s"] for message in world.of(PushDone)] == [0] * 4


@pytest.mark.parametrize("interval", [1, 2])
def test_a_learner_that_is_stopped_while_it_is_held_saves_and_does_not_push(
    tmp_path: Path, interval: int
) -> None:
    """With an interval of 2 the push that waits is the one at the end of the run."""
    world = World([2] * (3 if interval == 1 else 1))
    outcome, _ = learn_held(
        world,
        tmp_path,
        rounds=float("inf"),
        should_stop=lambda peer: 1 in peer.asked,
        update_weights_interval=interval,
    )
    assert world.pushes == [0]
    assert world.delivered[-1] == Path("out")
    assert world.of(Retire) == [], "the run may go on, with the checkpoint before this one"
    assert (outcome.num_iterations, outcome.version) == (1, 0)
    assert outcome.reason == "the learner was asked to stop"


def test_a_late_engine_gets_its_weights_in_the_midst_of_a_hold(tmp_path: Path) -> None:
    """Else an evaluation whose only engine came back would wait for the push, and it for that."""
    world = World([2] * 2)
    learn_held(world, tmp_path, rounds=5, republish_at=1)
    assert world.pushes == [0, 1, 2]
    rows = [message.row for message in world.of(PushDone)]
    assert [(row.version, row.iteration) for row in rows] == [(0, 0), (1, 1), (2, 2)]
    assert world.of(PushDone)[1].metrics["perf/eval_hold_s"] < 5 * TURN_S
