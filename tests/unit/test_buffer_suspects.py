"""An episode that takes its workers down is found, and those that were beside it pay nothing."""

import math
import random
from collections import Counter

import pytest

from agentrl.buffer.rows import EpisodeRow, GroupRow
from agentrl.buffer.suspects import Suspects
from agentrl.types import EpisodeId, Fate, Outcome, SamplingParams, Task
from agentrl.wire.messages import (
    Assign,
    Cancel,
    Capacity,
    Evaluate,
    GroupScore,
    PeerLost,
    ScoreGroup,
)
from tests.unit.buffer_bench import Bench, bench

ROOM = 70


def ids(*indices: int) -> list[EpisodeId]:
    return [EpisodeId("00000001", index) for index in indices]


# ---- the rule ----


def test_a_crowd_is_halved_by_its_root_then_played_one_at_a_time() -> None:
    suspects, crowd = Suspects(), ids(*range(64))
    assert suspects.lost(crowd) == {}
    assert suspects.may_join(crowd[0], crowd[1:]), "most losses never come back"
    assert suspects.lost(crowd) == {}
    assert suspects.may_join(crowd[0], crowd[1:8])
    assert not suspects.may_join(crowd[0], crowd[1:9])
    assert suspects.lost(crowd[:8]) == {}
    assert suspects.may_join(crowd[0], [EpisodeId("fresh", n) for n in range(50)])
    assert not suspects.may_join(crowd[0], crowd[1:2])
    assert not suspects.may_join(crowd[20], crowd[1:2]), "beside one that is to be alone"
    assert suspects.lost([crowd[3], EpisodeId("fresh", 0)]) == {crowd[3]: 4}


def test_who_was_lost_once_does_not_pay_for_what_newcomers_may_have_done() -> None:
    suspects = Suspects()
    long, culprit = EpisodeId("long", 0), EpisodeId("culprit", 0)
    assert suspects.lost([long, EpisodeId("done", 0)]) == {}
    suspects.cleared(EpisodeId("done", 0))
    assert suspects.lost([long, culprit, EpisodeId("new", 0)]) == {}
    assert suspects.lost([long, EpisodeId("newer", 0)]) == {long: 3}  # it was there each time


def test_one_that_is_alone_on_its_worker_pays_each_time() -> None:
    suspects, (one,) = Suspects(), ids(0)
    for _ in range(3):
        assert suspects.lost([one]) == {one: 1}
        suspects.paid(one)


def test_who_ends_without_its_worker_is_no_suspect_and_who_comes_late_is_one() -> None:
    suspects, (first, second, late) = Suspects(), ids(0, 1, 2)
    suspects.lost([first, second])
    suspects.cleared(first)
    assert suspects.lost([first, second, late]) == {}
    assert first in suspects
    assert late in suspects
    suspects.forget()
    assert not suspects.any([first, second, late])


# ---- the buffer ----


class Play:
    """Workers that play by chance, one of them with a culprit on it that takes it down."""

    def __init__(self, b: Bench, workers: list[str], culprits: set[tuple[str, int]]) -> None:
        self.b, self.culprits = b, culprits
        self.random = random.Random(7)
        self.lives = Counter(dict.fromkeys(workers, 1))
        self.playing: dict[str, set[EpisodeId]] = {name: set() for name in workers}
        self.deaths = 0

    def peer(self, name: str) -> str:
        return f"{name}.{self.lives[name]}"

    def round(self) -> None:
        for name, held in self.playing.items():
            peer = self.peer(name)
            held |= {each.id for message in self.b.take(peer, Assign) for each in message.episodes}
            held -= {id for message in self.b.take(peer, Cancel) for id in message.episodes}
            if any((id.group, id.index) in self.culprits for id in held):
                self.die(name)
                continue
            for id in sorted(held):
                if self.random.random() < 0.2:
                    held.discard(id)
                    self.b.finish(peer, id)
            self.b.judge_all(peer)

    def die(self, name: str) -> None:
        self.deaths += 1
        self.playing[name].clear()
        self.b.say("driver.1", PeerLost(name, str(self.lives[name]), failed=True))
        self.lives[name] += 1
        peer = self.b.join(name, "worker", str(self.lives[name]))
        self.b.say(peer, Capacity(ROOM))

    def until_all_have_ended(self) -> None:
        for _ in range(2000):
            self.round()
            figures = self.b.core.stats()
            if figures["queued"] == figures["running"] == figures["judging"] == 0:
                return
        raise AssertionError(self.b.core.stats())


def crowd(workers: list[str], size: int) -> Bench:
    b = bench(tuple(workers), ROOM, n_samples_per_prompt=size, rollout_batch_size=1)
    b.offer(1)
    return b


def last_rows(b: Bench) -> dict[int, EpisodeRow]:
    return {row.index: row for row in b.rows if isinstance(row, EpisodeRow)}


@pytest.mark.parametrize("workers", [["w0"], ["w0", "w1", "w2", "w3"]])
@pytest.mark.parametrize("culprit", [0, 40, 64])
def test_of_64_beside_a_culprit_none_is_charged_and_the_culprit_is_named(
    workers: list[str], culprit: int
) -> None:
    b = crowd(workers, 65)
    play = Play(b, workers, {("00000001", culprit)})
    play.until_all_have_ended()
    rows = last_rows(b)
    found = rows.pop(culprit)
    assert {(row.outcome, row.engine_failures) for row in rows.values()} == {(Outcome.DONE, 0)}
    assert found.outcome is Outcome.ENV_ERROR
    assert f"was lost with episode 00000001/{culprit}#" in str(found.error)
    assert play.deaths <= 4
    assert b.told("failures")[-1]["counts"] == {"env_error": 1}


def test_two_culprits_are_both_found() -> None:
    b = crowd(["w0"], 64)
    play = Play(b, ["w0"], {("00000001", 5), ("00000001", 50)})
    play.until_all_have_ended()
    failed = {row.index for row in last_rows(b).values() if row.outcome is Outcome.ENV_ERROR}
    charged = {row.index for row in last_rows(b).values() if row.engine_failures}
    assert failed == charged == {5, 50}
    assert play.deaths <= 8


def test_workers_that_somebody_kills_cost_no_episode() -> None:
    b = crowd(["w0", "w1"], 64)
    play = Play(b, ["w0", "w1"], set())
    for number in range(12):
        play.round()
        if number % 3 == 0:
            play.die(f"w{number % 2}")
    play.until_all_have_ended()
    assert {row.outcome for row in last_rows(b).values()} == {Outcome.DONE}


def test_an_evaluation_beside_a_culprit_has_all_its_episodes() -> None:
    b = crowd(["w0"], 20)
    play = Play(b, ["w0"], {("00000001", 3)})
    b.say("driver.1", Evaluate("held", "e1", [Task("t", {})], 12, SamplingParams(), beside=True))
    play.until_all_have_ended()
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"]) == (12, 0)
    assert last_rows(b)[3].outcome is Outcome.ENV_ERROR


def test_a_culprit_of_an_evaluation_costs_training_nothing() -> None:
    b = crowd(["w0"], 20)
    play = Play(b, ["w0"], {("eval-e1-0", 3)})
    b.say("driver.1", Evaluate("held", "e1", [Task("t", {})], 12, SamplingParams(), beside=True))
    play.until_all_have_ended()
    (told,) = b.told("evaluation")
    assert (told["n"], told["failed"]) == (11, 1)
    assert {row.engine_failures for row in last_rows(b).values()} == {0}


def test_a_judge_that_takes_workers_down_costs_the_episodes_beside_it_nothing() -> None:
    b = bench(("w0",), ROOM, n_samples_per_prompt=1, rollout_batch_size=20)
    b.offer(20)
    play = Play(b, ["w0"], set())
    first = b.assigned("w0.1")
    play.playing["w0"] = {each.id for each in first[1:]}
    b.finish("w0.1", first[0].id)
    for _ in range(3):
        assert b.take(play.peer("w0"), ScoreGroup)
        play.die("w0")
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}
    play.until_all_have_ended()
    rows = [row for row in b.rows if isinstance(row, EpisodeRow)]
    assert {row.engine_failures for row in rows} == {0}


def test_a_judgement_beside_a_culprit_is_made_all_the_same() -> None:
    b = bench(("w0",), ROOM, n_samples_per_prompt=1, rollout_batch_size=20)
    b.offer(20)
    play = Play(b, ["w0"], {("00000007", 0)})
    episodes = b.assigned("w0.1")
    b.finish("w0.1", episodes[0].id)
    (order,) = b.take("w0.1", ScoreGroup)  # it is slow
    for _ in range(12):
        play.die("w0")
        if again := b.take(play.peer("w0"), ScoreGroup):
            assert again == [order]
            b.say(play.peer("w0"), GroupScore(order.group, [1.0]))
            break
    play.until_all_have_ended()
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}
    (ended,) = [r.mint for r in b.rows if isinstance(r, GroupRow) and r.fate is Fate.ENV_ERROR]
    assert ended == 7


def test_suspects_stay_few_on_each_worker() -> None:
    """After two losses no worker has more of them than the root of the crowd."""
    b = crowd(["w0"], 64)
    play = Play(b, ["w0"], set())
    play.die("w0")
    play.die("w0")
    assert len(b.assigned(play.peer("w0"))) == math.isqrt(64)
