"""The lag of the staleness benchmark: engines hold the weights of L iterations ago, and say so."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch

from agentrl.cluster.host import ProcessOrder
from agentrl.learner.question import AskLease
from agentrl.learner.schedule import LoopSettings, Push, Schedule, StepAnswer, Tell, Train
from agentrl.lineage import Lineage
from agentrl.types import EngineAddress, LeaseHeader, PushReport
from agentrl.wire.messages import AnnounceVersion, Lease, Stepped
from benchmarks import ROOT
from benchmarks.lagged import lagged_order
from benchmarks.lagged_learner import LaggedSink

Tensors = Iterable[tuple[str, Any]]


class Engine:
    """What an engine holds: the last weights and their label, which every pushed one was."""

    def __init__(self) -> None:
        self.version = -1
        self.weights: dict[str, float] = {}
        self.labels: list[int] = []
        self.verified: dict[str, float] = {}
        self.num_inspected = 0
        self.is_closed = False

    def publish(self, version: int, tensors: Tensors) -> PushReport:
        self.version = version
        self.weights = {name: float(tensor) for name, tensor in tensors}
        self.labels.append(version)
        return PushReport(version, 0.0, 0.0, 4, ("engine-0",))

    def inspect(self) -> None:
        self.num_inspected += 1

    def verify(self, tensors: Tensors) -> None:
        self.verified = {name: float(tensor) for name, tensor in tensors}

    def moved(self, engines: Sequence[EngineAddress], /) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def played(lag: int, num_leases: int) -> tuple[Engine, list[int], list[float]]:
    """A learner's schedule with a sink of that lag. What the engine holds when a lease is asked for
    samples it. The engine, the age of each lease, and the iterations that its weights held:
    weight `w` counts them."""
    engine, lineage, weight = Engine(), Lineage(), torch.zeros(())
    sink = LaggedSink(engine, lag)
    ages: list[int] = []
    contained: list[float] = []
    steps = Schedule(LoopSettings(update_weights_interval=1, save_interval=1000), [], None).steps()
    step = next(steps)
    while len(ages) < num_leases or not isinstance(step, AskLease):
        answer: StepAnswer = None
        match step:
            case Tell(AnnounceVersion(row)):
                lineage.add(row)
            case Push(row):
                report = sink.publish(row.version, iter([("w", weight)]))
                assert report.version == engine.version
                answer = {}
            case AskLease(number):
                ages.append(lineage.checked_age(engine.version, number))
                contained.append(engine.weights["w"])
                answer = Lease(LeaseHeader(number, [], False))
            case Train(header):
                weight += 1  # in place, as an optimizer does
                answer = Stepped(header.number, False, 0.0, 0.0, 1.0)
        step = steps.send(answer)
    return engine, ages, contained


@pytest.mark.parametrize("lag", [0, 1, 8])
def test_every_batch_is_of_weights_of_lag_iterations_ago_and_called_so(lag: int) -> None:
    _, ages, contained = played(lag, 20)
    assert ages == [min(done, lag) for done in range(20)]
    assert contained == [max(done - lag, 0) for done in range(20)]


def test_the_first_iterations_have_the_first_weights() -> None:
    engine, _, _ = played(3, 6)
    assert engine.labels == [0, 0, 0, 0, 1, 2, 3]


def test_weights_that_are_pushed_again_count_once() -> None:
    engine = Engine()
    sink = LaggedSink(engine, 1)
    for version, weight in [(0, 0.0), (0, 0.0), (1, 1.0), (1, 1.0), (2, 2.0)]:
        sink.publish(version, [("w", torch.tensor(weight))])
    assert engine.labels == [0, 0, 0, 0, 1]
    assert engine.weights == {"w": 1.0}


def test_what_is_verified_is_what_the_engine_was_given() -> None:
    engine = Engine()
    sink = LaggedSink(engine, 1)
    for version in (0, 1):
        sink.publish(version, [("w", torch.tensor(float(version)))])
    newer = iter([("w", torch.tensor(1.0))])
    sink.verify(newer)
    assert engine.verified == {"w": 0.0}
    assert list(newer) == []
    sink.inspect()
    sink.close()
    assert (engine.num_inspected, engine.is_closed) == (1, True)


def test_the_learners_command_alone_is_another_one() -> None:
    argv = ("python", "-m", "agentrl.cluster.roles", "learner-0", "/run/spec.json")
    learner = ProcessOrder("learner-0", argv, "learner", {"OMP_NUM_THREADS": "1"}, "log")
    found = lagged_order(learner, 8)
    assert found.argv[1:] == ("-m", "benchmarks.lagged_learner", "8", "learner-0", "/run/spec.json")
    assert found.env["OMP_NUM_THREADS"] == "1"
    assert found.env["PYTHONPATH"].startswith(str(ROOT))
    assert (found.name, found.kind, found.log) == (learner.name, learner.kind, learner.log)
    worker = ProcessOrder("worker-0", argv, "worker")
    assert lagged_order(worker, 8) is worker
