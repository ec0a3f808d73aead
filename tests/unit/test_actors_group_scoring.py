"""The judge against filters that answer well, badly, or never."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

from agentrl.actors.failures import Failures
from agentrl.actors.filters.check_reward_nonzero_std import check_reward_nonzero_std
from agentrl.actors.group_scoring import FILTER, score_group
from agentrl.errors import ConfigError
from agentrl.shipped import FILTERS
from agentrl.types import EpisodeSummary, Outcome, StopReason, Task
from agentrl.user_code import load
from agentrl.wire.frames import decode, encode
from agentrl.wire.messages import Envelope, GroupScore, ScoreGroup

pytestmark = pytest.mark.anyio


def order(*rewards: float) -> ScoreGroup:
    summaries = [
        EpisodeSummary(index, Outcome.DONE, StopReason.TERMINATED, reward, {})
        for index, reward in enumerate(rewards)
    ]
    return ScoreGroup("00000001", Task("t", {}), summaries)


def received(score: GroupScore) -> GroupScore:
    """As the buffer reads it."""
    envelope, _ = decode(encode(Envelope(1, 1, score)))
    assert isinstance(envelope.body, GroupScore)
    return envelope.body


async def judged(answer: object) -> GroupScore:
    keep_filter: Any = lambda rewards, task: answer  # noqa: E731
    return received(await score_group(order(0.0, 1.0), keep_filter, Failures()))


async def test_without_a_filter_each_group_is_kept_with_its_own_rewards() -> None:
    score = await score_group(order(0.0, 1.0), None, Failures())
    assert score == GroupScore("00000001", [0.0, 1.0])


async def test_groups_of_equal_rewards_are_dropped_with_the_reason() -> None:
    score = await score_group(order(1.0, 1.0), check_reward_nonzero_std, Failures())
    assert (score.keep, score.reason, score.error) == (False, "zero_std_1", None)
    assert (await score_group(order(0.0, 1.0), check_reward_nonzero_std, Failures())).keep


@pytest.mark.parametrize(
    ("answer", "keep", "reason"),
    [
        (True, True, ""),
        (np.bool_(False), False, ""),
        ((np.bool_(True), "x"), True, "x"),
        ((False, 3), False, "3"),
        ((True, None), True, ""),
        ((False, "a\udcff"), False, "a?"),
    ],
)
async def test_decisions_of_these_forms_are_taken(answer: object, keep: bool, reason: str) -> None:
    score = await judged(answer)
    assert (score.keep, score.reason, score.error) == (keep, reason, None)


@pytest.mark.parametrize("answer", [None, "yes", (), (True, "a", 2), 0.5, np.array([True, False])])
async def test_any_other_answer_is_an_error_of_the_filter(answer: object) -> None:
    score = await judged(answer)
    assert not score.keep
    assert "test_actors_group_scoring" in str(score.error)
    assert score.rewards == [0.0, 1.0]


@pytest.mark.parametrize("error", [KeyError("\udcff"), StopIteration(), SystemExit(1)])
async def test_whatever_a_filter_raises_is_an_error_of_the_filter(error: BaseException) -> None:
    def broken(rewards: object, task: Task) -> bool:
        raise error

    score = received(await score_group(order(0.0, 1.0), broken, Failures()))
    assert not score.keep
    assert type(error).__name__ in str(score.error)


@pytest.fixture
def hung() -> Iterator[Callable[..., bool]]:
    """A filter that answers at the end of the test."""
    end = threading.Event()
    yield lambda rewards, task: end.wait(300)
    end.set()


async def test_a_filter_that_hangs_is_cut_and_named(hung: Callable[..., bool]) -> None:
    score = await score_group(order(0.0, 1.0), hung, Failures(), timeout_s=0.05)
    assert not score.keep
    assert "test_actors_group_scoring.py:" in str(score.error)
    assert "0.05 s" in str(score.error)


async def test_a_judgement_can_be_cancelled(hung: Callable[..., bool]) -> None:
    with anyio.move_on_after(0.05) as scope:
        await score_group(order(0.0, 1.0), hung, Failures())
    assert scope.cancelled_caught


async def test_a_filter_cannot_change_the_rewards() -> None:
    def meddle(rewards: list[Any], task: Task) -> bool:
        rewards[:] = ["x"]
        return True

    keep_filter: Any = meddle
    assert (await score_group(order(0.0, 1.0), keep_filter, Failures())).rewards == [0.0, 1.0]


def test_a_filter_path_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--dynamic-sampling-filter-path nowhere.at:all"):
        load(FILTER, "nowhere.at:all")


async def test_what_a_filter_raises_is_in_the_worker_s_log_with_its_traceback_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(rewards: object, task: Task) -> bool:
        raise KeyError("gold")

    failures = Failures()
    for _ in range(2):
        await score_group(order(0.0, 1.0), broken, failures)
    said = [record for record in caplog.records if "group 00000001: env_error: " in record.message]
    assert ["KeyError: 'gold'" in record.message for record in said] == [True, True]
    assert [record.exc_info is not None for record in said] == [True, False]


@pytest.mark.parametrize("place", FILTERS.theirs)
def test_a_filter_of_slime_is_ours(place: str) -> None:
    assert load(FILTER, place) is check_reward_nonzero_std
