"""What an evaluation function does wrong is the error of its evaluation, by name."""

import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rollout_outputs import RolloutFnEvalOutput
from agentrl.errors import EngineError
from agentrl.types import EpisodeReport, Outcome
from tests.unit.eval_function_ground import called, said
from tests.unit.rollout_ground import LIMITS, Policy

pytestmark = pytest.mark.anyio


def returning(found: Any) -> Callable[..., Any]:
    """A function that returns `found`."""

    def evaluate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        return found

    return evaluate


class Odd:
    """Reading it raises."""

    @property
    def data(self) -> Any:
        raise ZeroDivisionError("no data")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "returned None; return RolloutFnEvalOutput"),
        ({}, "returned {}; return RolloutFnEvalOutput"),
        ([1.0, 0.0], "returned [1.0, 0.0]; return"),
        (Odd(), "returned what cannot be read: ZeroDivisionError: no data"),
        ({"a": [1.0]}, "set a is [1.0]; return"),
        ({"a": {"truncated": []}}, "set a is {'truncated': []}; return"),
        ({"a": {"rewards": []}}, "set a has no rewards; leave a set out that was not played"),
        ({"a": {"rewards": 1.0}}, "set a: rewards is 1.0; it is a list"),
        ({"a": {"rewards": "11"}}, "set a: rewards is '11'; it is a list"),
        ({"a": {"rewards": [1.0, float("nan")]}}, "set a: rewards[1] is nan; a reward must be a"),
        ({"a": {"rewards": [1e300]}}, "set a: rewards[0] is 1e+300; a reward must be a finite"),
        ({"a": {"rewards": [None]}}, "set a: rewards[0] is None; give a number"),
        ({"a": {"rewards": [{"score": 1}]}}, "set a: rewards[0] is {'score': 1}; give a number"),
        ({"a": {"rewards": [1], "truncated": [0, 1]}}, "has 1 rewards, and 2 entries in 'trunca"),
        ({"a": {"rewards": [1], "truncated": [3]}}, "truncated[0] is 3; give True or False"),
        ({"a": {"rewards": [1], "samples": []}}, "has 1 rewards, and 0 entries in 'samples'"),
        ({"a/b": {"rewards": [1]}}, "a set that is called 'a/b'; give it a name"),
        ({7: {"rewards": [1]}}, "a set that is called 7; give it a name"),
    ],
)
async def test_what_is_no_result_is_told_with_its_place(found: Any, told: str) -> None:
    report = await called(returning(found))
    assert (report.outcome, report.evaluated) == (Outcome.ENV_ERROR, None)
    assert told in str(report.error)
    assert "--eval-function-path" in str(report.error)


async def test_a_metric_that_is_no_number_is_told() -> None:
    found = RolloutFnEvalOutput({"a": {"rewards": [1]}}, {"speed": "fast"})
    report = await called(returning(found))
    assert "returned the metric 'speed' = 'fast'; give a number" in str(report.error)


def taking(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
    return data_source.get_samples(1)


def raising(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
    raise SystemExit(3)


def punishing(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
    return run(said(args, repetition_penalty=1.2))


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (taking, "data_source gives an evaluation nothing: its tasks are those of training"),
        (raising, "raised SystemExit: 3"),
        (punishing, "repetition_penalty is 1.2; answers here are sampled with 1: leave it out"),
    ],
)
async def test_what_it_raises_is_the_error_of_its_evaluation(
    function: Callable[..., Any], told: str
) -> None:
    report = await called(function)
    assert report.outcome is Outcome.ENV_ERROR
    assert told in str(report.error)


async def test_an_engine_that_fails_its_request_is_what_has_failed_it() -> None:
    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        return run(said(args))

    report = await called(function, Policy(lambda text: EngineError("the engine is lost")))
    assert report.outcome is Outcome.ENGINE_ERROR
    assert str(report.error).startswith("EngineError: the engine is lost")


async def test_one_that_hangs_is_given_up_and_its_requests_are_refused_from_then_on() -> None:
    goes_on, ended = threading.Event(), threading.Event()
    refused: list[str] = []

    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        goes_on.wait(60)
        try:
            run(said(args))
        except Exception as error:
            refused.append(str(error))
        ended.set()

    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=0.5)
    report: EpisodeReport = await called(function, limits=limits)
    assert report.outcome is Outcome.ENV_ERROR
    assert "asked its model nothing for 0.5 s (--episode-timeout-s)" in str(report.error)
    goes_on.set()
    assert ended.wait(60)
    assert refused


async def test_one_that_asks_its_model_may_take_longer_than_an_episode() -> None:
    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)

    def function(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        for _ in range(4):
            threading.Event().wait(0.9)
            run(said(args))
        return {"set": {"rewards": [1]}}

    report = await called(function, limits=limits)
    assert report.error is None
    assert report.wall_s > limits.episode_timeout_s
