"""What a group is scored on, and what scores, lost workers and filters make of it."""

from pathlib import Path

import msgspec
import pytest

from agentrl.bounds import MAX_ANSWERS_CHARS
from agentrl.buffer.ledger import Ledger
from agentrl.types import Fate, Outcome
from agentrl.wire.messages import GroupScore, PeerLost, Refused, ScoreGroup, TaskCredit
from tests.unit.buffer_bench import bench


def test_a_group_with_enough_done_episodes_is_judged_on_those_alone() -> None:
    b = bench(n_samples_per_prompt=3, min_group_size=2, rollout_batch_size=1)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        outcome = Outcome.POISON if episode.id.index == 1 else Outcome.DONE
        b.finish("w0.1", episode.id, outcome=outcome)
    (order,) = b.take("w0.1", ScoreGroup)
    assert [summary.index for summary in order.episodes] == [0, 2]
    b.say("w0.1", GroupScore(order.group, [0.5, 1.5]))
    (group,) = b.lease(1).groups
    assert [id.index for id in group.episodes] == [0, 2]
    assert group.rewards == [0.5, 1.5]


def test_a_group_with_too_few_done_episodes_ends_in_its_commonest_failure() -> None:
    b = bench(n_samples_per_prompt=3)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        outcome = Outcome.DONE if episode.id.index == 1 else Outcome.POISON
        b.finish("w0.1", episode.id, outcome=outcome)
    assert b.core.state.fates == {Fate.POISON: 1}


def test_a_judge_is_asked_elsewhere_when_its_worker_is_lost() -> None:
    b = bench(workers=("w0", "w1"), capacity=2, rollout_batch_size=1)
    b.offer(1)
    for worker in ("w0.1", "w1.1"):
        for episode in b.assigned(worker):
            b.finish(worker, episode.id)
    asked = "w0.1" if b.take("w0.1", ScoreGroup) else "w1.1"
    other = "w1.1" if asked == "w0.1" else "w0.1"
    b.say("driver.1", PeerLost(asked.removesuffix(".1")))
    assert len(b.take(other, ScoreGroup)) == 1


def test_a_judge_that_takes_three_workers_down_ends_the_group() -> None:
    b = bench(n_samples_per_prompt=1)
    b.offer(1)
    (episode,) = b.assigned("w0.1")
    b.finish("w0.1", episode.id)
    for incarnation in ("2", "3", "4"):
        b.join("w0", "worker", incarnation)
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


@pytest.mark.parametrize(
    "score",
    [
        GroupScore("00000001", error="scoring raised"),
        GroupScore("00000001", [1.0]),
        GroupScore("00000001", [1.0, float("nan")]),
    ],
)
def test_a_verdict_that_cannot_be_used_is_an_environment_error(score: GroupScore) -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.say("w0.1", score)
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}
    (told,) = b.told("scoring_failed")
    assert (told["group"], told["worker"]) == ("00000001", "w0")
    assert told["error"] == b.told("fates")[-1]["reasons"]["env_error"]


def test_a_verdict_that_cannot_be_read_ends_its_group_as_a_failed_judge_would() -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    (order,) = b.take("w0.1", ScoreGroup)
    seq = b.garble("w0.1", group=order.group)
    assert b.take("w0.1", Refused) == [Refused("cannot be read", seq)]
    assert b.core.state.fates == {Fate.ENV_ERROR: 1}


def test_a_filtered_group_returns_its_charge_at_once() -> None:
    b = bench()
    b.offer(4)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.take("driver.1", TaskCredit)
    b.judge_all("w0.1", keep=False)
    assert b.core.state.charged == 0
    assert b.core.state.fates == {Fate.FILTERED: 4}


@pytest.mark.parametrize("keep", [True, False])
def test_the_driver_is_told_of_each_judged_group_where_it_wants_to_be(keep: bool) -> None:
    for tells in (True, False):
        b = bench(tells_judged=tells)
        b.offer(1, row={"input": "2+2"}, part="sums")
        for episode in b.assigned("w0.1"):
            b.finish("w0.1", episode.id, answer=f"answer {episode.id.index}")
        b.judge_all("w0.1", keep=keep)
        told = b.told("scored")
        assert len(told) == tells
        for group in told:
            assert (group["mint"], group["kept"]) == (1, keep)
            assert (group["task"].row, group["task"].part) == ({"input": "2+2"}, "sums")
            found = [(each.index, each.reward, each.answer) for each in group["episodes"]]
            assert found == [(0, 0.0, "answer 0"), (1, 1.0, "answer 1")]


def test_a_group_whose_judge_failed_is_not_told_as_judged() -> None:
    b = bench(tells_judged=True)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id)
    b.say("w0.1", GroupScore("00000001", error="scoring raised"))
    assert not b.told("scored")


def test_a_group_that_is_dropped_without_rewards_is_told_with_its_own() -> None:
    b = bench(tells_judged=True)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id, reward=0.25)
    b.say("w0.1", GroupScore("00000001", [], keep=False, reason="dull"))
    (group,) = b.told("scored")
    assert [each.reward for each in group["episodes"]] == [0.25, 0.25]
    assert group["reason"] == "dull"


@pytest.mark.parametrize(
    "score",
    [
        GroupScore("00000001", [1.0, 0.0]),
        GroupScore("00000001", [1.0, 0.0], keep=False, reason="dull"),
        GroupScore("00000001", error="scoring raised"),
    ],
)
def test_what_episodes_said_is_kept_until_the_verdict(score: GroupScore, tmp_path: Path) -> None:
    b = bench()
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id, answer="four")
    with Ledger(tmp_path / "ledger.db") as ledger:
        ledger.commit(b.rows)
        before = ledger.load_all()
        assert [row.answer for row in before.episodes] == ["four", "four"]
        b.rows.clear()
        b.say("w0.1", score)
        ledger.commit(b.rows)
        after, restarted = ledger.load_all(), ledger.load()
    bare = [msgspec.structs.replace(row, answer="") for row in before.episodes]
    assert list(after.episodes) == bare
    # memory holds what a restart reads, and counts no trajectory twice
    state = b.core.state
    assert list(restarted.episodes) == [*state.episodes.values()]
    assert restarted.total_sampled_tokens == state.total_sampled_tokens == 8
    assert restarted.segments[1].live == 2 * state.needs_segment(1)


def test_of_long_texts_a_judged_group_has_the_end() -> None:
    b = bench(tells_judged=True)
    b.offer(1)
    for episode in b.assigned("w0.1"):
        b.finish("w0.1", episode.id, answer="a" * MAX_ANSWERS_CHARS + "end")
    b.judge_all("w0.1")
    (group,) = b.told("scored")
    texts = [each.answer for each in group["episodes"]]
    assert sum(map(len, texts)) == MAX_ANSWERS_CHARS
    assert all(text.endswith("aend") for text in texts)
