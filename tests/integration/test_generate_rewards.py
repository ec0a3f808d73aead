"""What samples of a function that plays episodes are worth: labels, and rewards that hang."""

import dataclasses
import importlib
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.envs.slime_stand_in.rm_hub import batched_async_rm
from agentrl.types import Outcome, Task
from tests.unit.generate_asking import PARIS, asked, edited
from tests.unit.generate_ground import play_function
from tests.unit.rollout_ground import LIMITS, Policy

pytestmark = pytest.mark.anyio


SAID_43 = "\\boxed{43}"
SUMS = {"input": "What is 6 times 7?", "label": "42"}


async def undecided(args: Any, sample: Any, **kwargs: Any) -> float:
    await anyio.sleep_forever()
    return 0.0


async def test_a_reward_that_hangs_is_an_error_and_no_reward_of_0() -> None:
    short = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    played = await play_function(
        edited(), Policy([PARIS]), limits=short, reward=f"{__name__}:undecided"
    )
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "GenerateEnv.score gave no reward within 3 s" in str(played.report.error)


async def asks_for_it(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    """A function that asks for the run's reward itself, as slime's may."""
    hub = importlib.import_module("slime.rollout.rm_hub")
    sample = await asked(args, sample, sampling_params)
    return dataclasses.replace(sample, reward=await hub.async_rm(args, sample))


async def test_a_reward_that_hangs_within_the_function_is_an_error_too() -> None:
    short = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    played = await play_function(
        asks_for_it, Policy([PARIS]), limits=short, reward=f"{__name__}:undecided"
    )
    assert played.report.outcome is Outcome.ENV_ERROR


async def second_hangs(args: Any, sample: Any, **kwargs: Any) -> float:
    await (anyio.sleep_forever() if sample.label == "second" else anyio.sleep(0.2))
    return 1.0


async def test_a_reward_that_hangs_beside_one_that_returns_is_an_error_too() -> None:
    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        await batched_async_rm(args, [sample, dataclasses.replace(sample, label="second")])
        return sample

    short = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)
    played = await play_function(
        generate, Policy([PARIS]), limits=short, reward=f"{__name__}:second_hangs"
    )
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "GenerateEnv.score gave no reward within 3 s" in str(played.report.error)


@pytest.mark.parametrize(
    ("fields", "more", "rm_type", "reward"),
    [
        ({}, {}, "math", 0.0),
        ({"label": "43"}, {}, "math", 1.0),
        ({"label": "43"}, {"metadata": {"rm_type": "math"}}, None, 1.0),
        ({"label": "43", "metadata": {"rm_type": "math"}}, {}, None, 1.0),
        ({"label": "43", "metadata": {}}, {"metadata": {"rm_type": "math"}}, None, 0.0),
        ({"label": "\\boxed{43}", "metadata": None}, {}, None, 1.0),  # the exact text
    ],
)
async def test_the_reward_of_the_run_reads_label_and_metadata_of_the_sample(
    fields: dict[str, Any], more: dict[str, Any], rm_type: str | None, reward: float
) -> None:
    assignment = {"task": Task("t", SUMS | more)}
    policy = Policy([SAID_43])
    report = (
        await play_function(edited(**fields), policy, assignment=assignment, rm_type=rm_type)
    ).report
    assert (report.error, report.reward) == (None, reward)


async def test_samples_that_are_scored_at_once_have_a_label_each() -> None:
    found = []

    async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        others = [dataclasses.replace(sample, label=label) for label in ("42", "43", "44")]
        found.extend(await batched_async_rm(args, others))
        return others[1]

    assignment = {"task": Task("t", SUMS), "evaluation": "e"}
    policy = Policy([SAID_43])
    report = (await play_function(generate, policy, assignment=assignment, rm_type="math")).report
    assert (report.error, report.reward, found) == (None, 1.0, [0, 1, 0])


@pytest.mark.parametrize(
    ("label", "said"),
    [(None, "the sample has no label, and the reward math compares"), ({"a": 1}, "has the keys")],
)
async def test_a_sample_without_a_label_is_named_where_the_reward_compares(
    label: Any, said: str
) -> None:
    assignment = {"task": Task("t", SUMS)}
    function, policy = edited(label=label), Policy([SAID_43])
    report = (await play_function(function, policy, assignment=assignment, rm_type="math")).report
    assert report.outcome is Outcome.ENV_ERROR
    assert said in str(report.error)
