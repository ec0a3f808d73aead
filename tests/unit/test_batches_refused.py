"""What a function of `--rollout-function-path` does wrong is told by name, for each episode that it
concerns, and the others are played on."""

import copy
import threading
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from agentrl.envs.slime_stand_in.async_utils import run
from agentrl.envs.slime_stand_in.rollout_outputs import RolloutFnTrainOutput
from agentrl.errors import EngineError
from agentrl.types import Outcome, StopReason
from tests.unit.batch_ground import Batched, answered, assigned
from tests.unit.generate_asking import asked
from tests.unit.rollout_ground import LIMITS, Policy
from tests.unit.test_batches import says

pytestmark = pytest.mark.anyio

Groups = list[list[Any]]


def returning(change: Callable[[Groups], Any]) -> Callable[..., Any]:
    """A function that plays its groups, and returns what `change` makes of them."""

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        return change([await answered(args, group) for group in groups])

    return generate


async def outcomes(function: Callable[..., Any], num_groups: int = 2) -> list[tuple[Any, str]]:
    played = await Batched(function).play(assigned(num_groups), Policy(says))
    return [(each.report.outcome, each.report.error or "") for each in played]


async def test_a_group_that_is_left_out_is_given_up_and_is_no_error() -> None:
    played = await Batched(returning(lambda groups: groups[:1])).play(assigned(2), Policy(says))
    reports = [each.report for each in played]
    assert [each.outcome for each in reports] == [Outcome.DONE] * 2 + [Outcome.FILTERED] * 2
    assert {each.stop_reason for each in reports[2:]} == {StopReason.GIVEN_UP}
    assert "call 0: it took the group and did not return it" in str(reports[2].error)


def foreign(groups: Groups) -> Groups:
    other = copy.copy(groups[0][0])
    other.index = 999
    return [*groups, [other]]


def unnumbered(groups: Groups) -> Groups:
    for sample in groups[0]:
        sample.index = None
    return groups


def mixed(groups: Groups) -> Groups:
    return [[groups[0][0], groups[1][1]], [groups[1][0], groups[0][1]]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda groups: None, "generate returned None; return RolloutFnTrainOutput(samples=...), "),
        (lambda groups: groups[0], "; return RolloutFnTrainOutput(samples=...), or a list of gro"),
        (lambda groups: [*groups, groups[0]], "generate returned the group of sample 2 twice"),
        (foreign, "a sample of index 999: call 0 was given none such"),
        (unnumbered, "a sample of index None: call 0 was given none such"),
        (mixed, "mixes samples of the groups [1, 2] in one"),
        (lambda groups: 1 / 0, "generate raised ZeroDivisionError: division by zero"),
    ],
)
async def test_what_fails_the_call_fails_all_that_it_took(
    change: Callable[[Groups], Any], said: str
) -> None:
    found = await outcomes(returning(change))
    assert [outcome for outcome, _ in found] == [Outcome.ENV_ERROR] * 4
    assert all(said in error for _, error in found), found[0]


def made_up(groups: Groups) -> Groups:
    groups[0][1].tokens = [*groups[0][1].tokens[:-1], 5]
    return groups


def odd(groups: Groups) -> Groups:
    groups[0][1].loss_mask = [1]
    return groups


def aborted(groups: Groups) -> Groups:
    sample = groups[0][1]
    sample.status = sample.Status.ABORTED
    return groups


@pytest.mark.parametrize(
    ("change", "outcome", "said"),
    [
        (made_up, Outcome.ENV_ERROR, "with loss_mask 1, but was not sampled there"),
        (odd, Outcome.ENV_ERROR, "loss_mask has 1 entries"),
        (aborted, Outcome.ENGINE_ERROR, "returned a sample whose status is aborted"),
    ],
)
async def test_what_is_wrong_with_a_sample_fails_its_episode_alone(
    change: Callable[[Groups], Any], outcome: Outcome, said: str
) -> None:
    found = await outcomes(returning(change))
    assert [found[n] for n in (0, 2, 3)] == [(Outcome.DONE, "")] * 3
    assert found[1][0] == outcome
    assert said in found[1][1]


def of_own_class(groups: Groups) -> Groups:
    sample = groups[0][1]
    kept = ("index", "tokens", "response_length", "reward", "status")
    groups[0][1] = types.SimpleNamespace(**{name: getattr(sample, name) for name in kept})
    return groups


class Odd:
    """A sample that cannot be read."""

    @property
    def index(self) -> int:
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("change", "num_failed", "said"),
    [
        (of_own_class, 1, "SimpleNamespace without loss_mask; return the samples of data_source."),
        (
            lambda groups: [[Odd()], *groups],
            4,
            "OSError: the disk is gone; return RolloutFnTrainOutput(samples=...), or a list of gro",
        ),
        (
            lambda groups: RolloutFnTrainOutput(groups, metrics={"many": 10**400}),
            4,
            "the metric 'many'",
        ),
    ],
)
async def test_what_cannot_be_read_is_refused_and_the_next_call_is_made(
    change: Callable[[Groups], Any], num_failed: int, said: str
) -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(args.rollout_batch_size)
        groups = [await answered(args, group) for group in groups]
        return change(groups) if rollout_id == 0 else groups

    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=6.0)
    played = await Batched(generate, limits=limits).play(assigned(3), Policy(says))
    failed = [each.report for each in played if each.report.error]
    assert [each.outcome for each in failed] == [Outcome.ENV_ERROR] * num_failed
    assert all(said in str(each.error) for each in failed), failed[0].error


async def test_a_token_that_was_sampled_once_is_trained_once() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(1)
        await answered(args, groups[0][:1])
        one, two = groups[0]
        two.tokens, two.response_length, two.reward = one.tokens, one.response_length, 1.0
        return groups

    found = await outcomes(generate, 1)
    assert [outcome for outcome, _ in found] == [Outcome.DONE, Outcome.ENV_ERROR]
    assert "another sample trains it already" in found[1][1]


async def test_a_group_that_comes_back_in_part_is_refused_as_a_whole() -> None:
    found = await outcomes(returning(lambda groups: [groups[0][:1], groups[1]]))
    assert [outcome for outcome, _ in found] == [Outcome.ENV_ERROR] * 2 + [Outcome.DONE] * 2
    assert "it returned 1 of the 2 episodes of a group, without [1]" in found[0][1]


async def test_an_engine_that_fails_the_function_is_the_engines_failure() -> None:
    def lost(text: str) -> str | Exception:
        return EngineError("the engine is lost") if "Spain" in text else says(text)

    function = returning(lambda groups: groups)
    played = await Batched(function).play(assigned(2), Policy(lost))
    assert {each.report.outcome for each in played} == {Outcome.ENGINE_ERROR}
    assert "the engine is lost" in str(played[0].report.error)


class Once:
    """An engine that fails the first request for Spain."""

    def __init__(self) -> None:
        self.has_failed = False

    def __call__(self, text: str) -> str | Exception:
        if "Spain" not in text or self.has_failed:
            return says(text)
        self.has_failed = True
        return EngineError("the engine is lost")


async def retried(args: Any, group: list[Any]) -> list[Any]:
    for sample in group:
        try:
            await answered(args, [sample])
        except ExceptionGroup:
            await answered(args, [sample])
    return group


async def test_what_a_function_raises_after_a_retry_is_its_own_failure() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        for group in data_source.get_samples(2):
            await retried(args, group)
        raise ZeroDivisionError("my own")

    played = await Batched(generate).play(assigned(2), Policy(Once()))
    assert {each.report.outcome for each in played} == {Outcome.ENV_ERROR}
    assert "raised ZeroDivisionError: my own" in str(played[0].report.error)


async def test_a_failed_request_is_the_engines_whatever_is_answered_after_it() -> None:
    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        france, spain = data_source.get_samples(2)
        try:
            await answered(args, spain)
        except ExceptionGroup as failed:
            await answered(args, france)
            raise RuntimeError("no answer") from failed

    played = await Batched(generate).play(assigned(2), Policy(Once()))
    assert {each.report.outcome for each in played} == {Outcome.ENGINE_ERROR}
    assert "the engine is lost" in str(played[0].report.error)


async def test_a_client_of_the_functions_own_says_by_its_status_that_an_engine_failed() -> None:
    class StatusError(Exception):
        response = types.SimpleNamespace(status_code=503)

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        france, spain = data_source.get_samples(2)
        with suppress(ExceptionGroup):
            await answered(args, spain)
        await answered(args, france)
        raise StatusError

    played = await Batched(generate).play(assigned(2), Policy(Once()))
    assert {each.report.outcome for each in played} == {Outcome.ENGINE_ERROR}


async def test_a_budget_that_is_spent_after_an_engine_failed_is_told_as_before() -> None:
    reasons = []

    async def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(2)
        for group in groups:
            await retried(args, group)
        for sample in groups[0]:
            spent = await asked(args, sample, {"max_new_tokens": 5})
            reasons.append(spent["meta_info"]["finish_reason"]["type"])
        return groups

    limits = msgspec.structs.replace(LIMITS, max_turns=1)
    played = await Batched(generate, limits=limits).play(assigned(2), Policy(Once()))
    assert [each.report.error for each in played] == [None] * 4
    assert reasons == ["length"] * 2


@pytest.mark.parametrize("gives_back", [True, False])
async def test_a_call_that_ends_no_group_ends_those_that_wait(gives_back: bool) -> None:
    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        if gives_back:
            data_source.add_samples(data_source.get_samples(2))
        return []

    found = await outcomes(generate)
    assert [outcome for outcome, _ in found] == [Outcome.ENV_ERROR] * 4
    assert "without a group that it has taken and kept" in found[0][1]


async def test_a_sample_that_was_given_back_is_none_of_the_call() -> None:
    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(2)
        data_source.add_samples(groups[:1])
        return groups

    found = await outcomes(generate)
    assert "call 0 was given none such, or has given it back" in found[2][1]


async def test_a_call_that_hangs_before_it_takes_a_group_is_given_up_too() -> None:
    hangs, returned = threading.Event(), list[int]()

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        if rollout_id == 0:
            hangs.wait(30)
            returned.append(rollout_id)
        return [run(answered(args, group)) for group in data_source.get_samples(1)]

    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    batched = Batched(generate, batch_size=1, limits=limits)
    played = await batched.play(assigned(2), Policy(says))
    assert returned == []  # another call has played the second group meanwhile
    hangs.set()
    reports = [each.report for each in played]
    assert [each.outcome for each in reports] == [Outcome.ENV_ERROR] * 2 + [Outcome.DONE] * 2
    assert all("within 3 s" in str(report.error) for report in reports[:2])


async def test_a_call_that_hangs_is_given_up_and_another_goes_on() -> None:
    hangs, refused = threading.Event(), list[str]()

    def generate(args: Any, rollout_id: int, data_source: Any, evaluation: bool) -> Any:
        groups = data_source.get_samples(1)
        if rollout_id == 0:
            hangs.wait(30)
            try:
                data_source.get_samples(1)
            except Exception as error:
                refused.append(str(error))
            raise RuntimeError("too late")
        return [run(answered(args, group)) for group in groups]

    limits = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    batched = Batched(generate, batch_size=1, limits=limits)
    played = await batched.play(assigned(2), Policy(says))
    hangs.set()
    reports = [each.report for each in played]
    assert [each.outcome for each in reports] == [Outcome.ENV_ERROR] * 2 + [Outcome.DONE] * 2
    assert all(
        "did not return within 3 s (--episode-timeout-s)" in str(r.error) for r in reports[:2]
    )
