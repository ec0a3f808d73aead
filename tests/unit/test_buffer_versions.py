"""Versions: announced before engines can hold them, so that a number is one set of weights."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.buffer import BufferCore
from agentrl.buffer.events import Effect, Persist
from agentrl.buffer.ledger import Ledger
from agentrl.buffer.rows import Row
from agentrl.types import Outcome, VersionRow
from agentrl.wire.messages import (
    Ack,
    AnnounceVersion,
    LeaseRequest,
    NewWeights,
    PushDone,
    Refused,
    Retire,
    Stepped,
    Welcome,
)
from tests.unit.buffer_bench import Bench, bench


def joined(b: Bench, incarnation: str) -> tuple[str, Welcome]:
    """A learner that takes the place of the one before, and what it is told."""
    learner = b.join("learner", "learner", incarnation)
    return learner, b.take(learner, Welcome)[-1]


def trained(num: int) -> Bench:
    """Version 1, then `num` iterations with a version each."""
    b = bench(async_buffer_size=4, max_staleness=4)
    b.offer(2 * num)
    b.play_all("w0.1")
    for number in range(1, num + 1):
        b.lease(number)
        b.step(number)
        b.publish(number + 1, number, number)
    return b


def test_an_announced_version_is_committed_before_it_is_acknowledged_and_told_to_nobody() -> None:
    b = trained(1)
    b.take("learner.1", Ack)
    num_told = len(b.told("published"))
    seq = b.say("learner.1", AnnounceVersion(VersionRow(3, 2, 1)))
    assert b.take("learner.1", Ack) == [Ack([seq])]
    assert b.core.state.lineage.tip == VersionRow(3, 2, 1)
    assert len(b.told("published")) == num_told
    assert b.core.state.published_through == 1


def test_a_number_that_was_announced_is_refused_to_other_weights() -> None:
    b = trained(1)
    for _ in range(2):
        b.say("learner.1", AnnounceVersion(VersionRow(3, 2, 1)))
    assert b.take("learner.1", Refused) == []
    for message in (AnnounceVersion(VersionRow(3, 1, 0)), PushDone(VersionRow(3, 1, 0), 0)):
        b.say("learner.1", message)
        assert "does not grow" in b.take("learner.1", Refused)[0].reason
    b.say("learner.1", AnnounceVersion(VersionRow(5, 4, 1)))
    assert "unknown parent 4" in b.take("learner.1", Refused)[0].reason


def test_only_a_learner_may_announce() -> None:
    b = bench()
    b.say("w0.1", AnnounceVersion(VersionRow(2, 1, 0)))
    assert "a worker may not send AnnounceVersion" in b.take("w0.1", Refused)[0].reason


def test_a_push_that_ended_is_told_once() -> None:
    b = trained(1)
    row = VersionRow(3, 2, 1)
    b.say("learner.1", AnnounceVersion(row))
    for _ in range(2):
        b.say("learner.1", PushDone(row, 1))
    assert b.take("learner.1", Refused) == []
    assert [event["version"] for event in b.told("published")] == [1, 2, 3]


class Durable(Bench):
    """A core whose rows lie in a ledger."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: list[Row] = []
        super().__init__()

    def do(self, event: Any) -> list[Effect]:
        effects = super().do(event)
        self._rows += [effect.row for effect in effects if isinstance(effect, Persist)]
        return effects

    def restart(self) -> None:
        with Ledger(self._folder / "ledger.db") as ledger:
            ledger.commit(self._rows)
            self.core = BufferCore(self.core.settings, ledger.load(), self.now)


def test_an_announcement_and_its_end_outlive_the_buffer(tmp_path: Path) -> None:
    b = Durable(tmp_path)
    b.join("learner", "learner")
    row = VersionRow(0, None, 0)
    b.say("learner.1", AnnounceVersion(row))
    b.restart()
    assert b.core.state.lineage.tip == row
    assert joined(b, "1")[1].versions == [row]
    for _ in range(2):
        b.say("learner.1", PushDone(row, 0))
        b.restart()
    assert len(b.told("published")) == 1


def test_reports_of_a_push_that_never_ended_are_as_old_as_what_was_lost() -> None:
    b = trained(3)
    b.say("learner.1", Retire(1))
    b.say("learner.1", AnnounceVersion(VersionRow(5, 4, 3)))
    b.offer(2)
    (episode, *others) = b.assigned("w0.1")
    b.finish("w0.1", episode.id, versions=((5, 4),))
    assert b.core.state.episodes[episode.mint, episode.id.index].outcome is Outcome.DONE

    learner, welcome = joined(b, "2")
    assert welcome.versions[-1] == VersionRow(5, 4, 3)
    assert welcome.retired_through == 1
    first = VersionRow(6, 2, 1)
    b.say(learner, AnnounceVersion(first))
    b.say(learner, PushDone(first, 1))
    for episode in others:
        b.finish("w0.1", episode.id, versions=((5, 4),))
    b.judge_all("w0.1")
    lineage = b.core.state.lineage
    assert [lineage.age(5, lease) for lease in (2, 3, 4, 5)] == [2, 2, 2, 2]
    for number in (2, 3):
        b.say(learner, LeaseRequest(number))
        b.say(learner, Stepped(number, False, 0.0, 0.0, 1.0))
    b.say(learner, LeaseRequest(4))
    assert b.take(learner, Refused) == []
    assert lineage.checked_age(5, 4) == 2


def test_two_deaths_in_a_push_use_up_two_numbers() -> None:
    b = trained(1)
    names = []
    for incarnation in ("2", "3", "4"):
        learner, welcome = joined(b, incarnation)
        names.append(max(row.version for row in welcome.versions) + 1)
        b.say(learner, AnnounceVersion(VersionRow(names[-1], 1, 0)))
        assert b.take(learner, Refused) == []
    assert names == [3, 4, 5]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, []),
        ({"partial_rollout": False}, [NewWeights(2)]),
        ({"keeps_cache": True}, [NewWeights(2)]),
    ],
)
def test_workers_hear_of_new_weights_once_and_only_where_that_matters(
    changes: dict[str, Any], told: list[NewWeights]
) -> None:
    b = bench(**changes)
    b.take("w0.1", NewWeights)
    for _ in range(2):
        b.publish(2, 1, 0)
    assert b.take("w0.1", NewWeights) == told
