"""Learner and engines on the same devices: the order, against memory that refuses two owners."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import InfrastructureError
from agentrl.learner.device_sharing import DeviceSharing, DeviceState, Move, SharingError, needed
from agentrl.learner.handover import Handover
from agentrl.learner.question import Answer, AskLease, AskPush, StopRequested
from agentrl.learner.schedule import (
    End,
    LoopSettings,
    Push,
    Save,
    SaveModel,
    Schedule,
    Step,
    StepAnswer,
    Train,
)
from agentrl.types import LeaseHeader, VersionRow
from agentrl.wire.messages import Lease, NoMoreLeases, PushGranted, Republish, Stepped
from tests.collectives import OneRank
from tests.manual_clock import ManualClock

SHARED = LoopSettings(
    update_weights_interval=1, save_interval=2, asks_before_push=True, shares_devices=True
)
EVERYTHING, WEIGHTS, NOTHING = 2, 1, 0


class Devices(OneRank):
    """Memory of the devices, both parties, and the turns. Refused: all of one beside anything of
    the other, a push without room, turns without a cache or by weights that no push has brought."""

    def __init__(self) -> None:
        self.learner, self.engines = EVERYTHING, NOTHING
        self.has_weights = self.is_held = False
        self.calls: list[str] = []
        self.hold()

    def take(self, learner: int, engines: int) -> None:
        assert max(learner, engines) < EVERYTHING or min(learner, engines) == NOTHING
        self.learner, self.engines = learner, engines

    def hold(self) -> None:
        self.is_held, self.has_weights = True, False

    def release(self) -> None:
        assert self.engines == EVERYTHING
        self.calls.append("release")
        self.hold()
        self.take(self.learner, NOTHING)

    def take_weights(self) -> None:
        assert self.engines == NOTHING
        self.calls.append("take_weights")
        self.take(self.learner, WEIGHTS)

    def serve(self) -> None:
        assert self.engines == WEIGHTS
        assert self.has_weights
        self.calls.append("serve")
        self.take(self.learner, EVERYTHING)
        self.is_held = False

    def lay_down(self, *, weights: bool) -> None:
        self.calls.append("sleep" if weights else "lay_down")
        self.take(NOTHING if weights else WEIGHTS, self.engines)

    def take_up(self) -> None:
        self.calls.append("wake")
        self.take(EVERYTHING, self.engines)

    def carry_out(self, step: Step) -> None:
        match step:
            case Train() | Save() | SaveModel():
                assert self.learner == EVERYTHING
                assert self.is_held
            case Push():
                assert (self.learner, self.engines) == (WEIGHTS, WEIGHTS)
                assert self.is_held
                self.has_weights = True
            case AskLease() | AskPush():
                assert self.engines == EVERYTHING
                assert self.has_weights
                assert not self.is_held
            case _:
                pass


def played(answers: list[Answer | None], leases: int, saved: bool = False) -> tuple[Devices, Any]:
    """A learner's life: `answers` to its questions in order, None and beyond: as asked."""
    devices, waiting = Devices(), list(answers)
    handover = Handover(devices, devices, ManualClock())

    def answered(step: Step) -> StepAnswer:
        match step:
            case AskLease(number):
                if waiting and (word := waiting.pop(0)) is not None:
                    return word
                if number > leases:
                    return NoMoreLeases(number - 1, "over")
                return Lease(LeaseHeader(number, [], last=number == leases and saved))
            case AskPush(version):
                word = waiting.pop(0) if waiting else None
                return word or PushGranted(version)
            case Train(header):
                return Stepped(header.number, False, 0.0, 0.0, 0.0)
            case Push():
                return {}
            case _:
                return None

    rows = [VersionRow(0, None, 0)] if saved else []
    steps = Schedule(SHARED, rows, None).steps()
    done = [next(steps)]
    while not isinstance(done[-1], End):
        handover.before(done[-1])
        devices.carry_out(done[-1])
        answer = answered(done[-1])
        handover.after(done[-1])
        done.append(steps.send(answer))
    handover.before(done[-1])
    return devices, done


@given(
    st.lists(st.sampled_from([None, None, None, Republish(1), StopRequested()]), max_size=12),
    st.integers(0, 5),
    st.booleans(),
)
def test_memory_never_has_two_owners_and_no_turn_meets_an_engine_without_it(
    answers: list[Answer | None], leases: int, last: bool
) -> None:
    devices, done = played(answers, leases, last)
    trained = [step.header.number for step in done if isinstance(step, Train)]
    assert trained == list(range(1, len(trained) + 1))
    if not any(isinstance(word, StopRequested) for word in answers):
        assert len(trained) == leases
        # The last evaluation is played after the learner's end.
        assert devices.engines == EVERYTHING
        assert devices.has_weights
        assert not devices.is_held


def test_an_iteration_goes_once_around_the_ring() -> None:
    devices, _ = played([], leases=1)
    first, iteration = ["lay_down", "take_weights", "sleep", "serve"], ["release", "wake"]
    around = iteration + first
    # The last checkpoint is written once the source says that nothing follows.
    assert devices.calls == [*first, *around, *around]


def test_an_engine_that_comes_late_has_its_weights_before_the_learner_trains() -> None:
    # the answers: a lease, an engine without weights where a push was asked for, and then as asked
    devices, done = played([None, Republish(1)], leases=1)
    kinds = [type(step) for step in done]
    asked = kinds.index(AskPush)
    assert kinds[asked : asked + 4] == [AskPush, Push, AskPush, Train]
    assert devices.calls[4:9] == ["release", "wake", *devices.calls[:3]]


def test_a_version_is_announced_when_its_engines_serve() -> None:
    devices = Devices()
    handover = Handover(devices, devices, ManualClock())
    push = Push(VersionRow(0, None, 0))
    handover.before(push)
    devices.carry_out(push)
    handover.after(push)
    assert devices.calls[-1] == "serve"


@given(st.lists(st.sampled_from(list(Move)), max_size=20))
def test_a_move_out_of_turn_is_refused_and_changes_nothing(moves: list[Move]) -> None:
    turns = DeviceSharing()
    for move in moves:
        due = turns.state
        wanted = next(state for state in DeviceState if state is not due)
        if due is DeviceState.PUSHING:
            turns.pushed()
        if move is turns.next_move(wanted):
            turns.moved(move)
            assert turns.state is not due
        else:
            with pytest.raises(SharingError):
                turns.moved(move)
            assert turns.state is due


def test_engines_whose_weights_are_gone_do_not_serve_before_a_push() -> None:
    turns = DeviceSharing(DeviceState.PUSHING)
    with pytest.raises(SharingError, match="no push has arrived"):
        turns.next_move(needed(AskLease(2)))
    turns.pushed()
    assert turns.next_move(DeviceState.SERVING) is Move.LEARNER_SLEEPS
    with pytest.raises(SharingError, match="no room"):
        DeviceSharing(DeviceState.LEARNING).pushed()


def test_ranks_without_the_way_to_the_engines_learn_what_went_wrong_there() -> None:
    devices = Devices()

    def failing() -> None:
        raise ConnectionError("engine-0 is gone")

    devices.take_weights = failing  # type: ignore[method-assign]
    handover = Handover(devices, devices, ManualClock())
    with pytest.raises(InfrastructureError, match="engine-0 is gone"):
        handover.before(Push(VersionRow(0, None, 0)))
    assert devices.engines == NOTHING
