"""Functions in slime's signature from assignment to report: what is trained, and how they end."""

import dataclasses
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.envs.slime_stand_in.types import Sample
from agentrl.errors import EngineError
from agentrl.types import EpisodeId, Outcome, SpanKind, StopReason, Task
from tests.unit.generate_asking import PARIS, asked, edited
from tests.unit.generate_ground import CONFIG, SEARCH, TASK, TURNS, Function, play_function
from tests.unit.page_snippets import ROOT, snippets
from tests.unit.rollout_ground import CHAT, LIMITS, Policy, columns_of, trained

pytestmark = pytest.mark.anyio

SHORT = msgspec.structs.replace(LIMITS, episode_timeout_s=3.0)


async def test_a_function_of_two_turns_is_trained_as_it_was_sampled() -> None:
    policy = Policy(TURNS)
    played = await play_function(SEARCH, policy, reward=f"{SEARCH}:reward_func")
    report = played.report
    assert (report.outcome, report.error, report.reward) == (Outcome.DONE, None, 1.0)
    assert report.stop_reason is StopReason.TERMINATED
    (meta,) = report.trajectories
    assert meta.num_turns == 2
    assert [version for version, _ in meta.versions] == [0, 1]
    (columns,) = columns_of(played)
    text = CHAT.vocab.decode(columns["tokens"].tolist())
    assert text.startswith(policy.prompts[0])
    assert text.endswith("<answer>Paris</answer>")
    # the second request was text, and reached the engine as the ids of the first and its answer
    said = [CHAT.vocab.decode(ids) for _, ids in trained(played)]
    assert said == ["I look it up. <search>France</search>", "So <answer>Paris</answer>"]
    for prompt, ids in trained(played):
        asked = [sampled for before, sampled in policy.asked if before == prompt]
        assert [sampled[: len(ids)] for sampled in asked] == [ids]
    tool = columns["tokens"][columns["kinds"] != SpanKind.SAMPLED].tolist()
    assert "<information>Paris is the capital" in CHAT.vocab.decode(tool)


# ---- functions of this file, which ask by ids ----


def masked(args: Any, sample: Any) -> None:
    """Train the first token of the response alone."""
    assert sample.reward is None
    sample.loss_mask = [1] + [0] * (sample.response_length - 1)


async def worth(args: Any, sample: Any, **told: Any) -> Any:
    """Another sample, whose reward is what it was told."""
    assert sum(sample.loss_mask) == 1, "after the one before"
    assert told == {"rollout_id": None, "evaluation": told["evaluation"]}
    return dataclasses.replace(sample, reward=0.25 + told["evaluation"])


def late(args: Any, sample: Any, evaluation: bool) -> None:
    if not evaluation:
        raise KeyError("late")


@pytest.mark.parametrize("evaluation", [None, "held"])
async def test_hooks_see_each_sample_before_its_reward(evaluation: str | None) -> None:
    hooks = [f"{__name__}:masked", f"{__name__}:worth"]
    config = msgspec.structs.replace(CONFIG, rollout_sample_hook_path=hooks)
    played = await play_function(
        SEARCH,
        Policy(TURNS),
        config=config,
        assignment={"evaluation": evaluation},
        reward=f"{SEARCH}:reward_func",
    )
    assert (played.report.error, played.report.reward) == (None, 0.25 + bool(evaluation))
    assert played.report.trajectories[0].num_sampled == 1


async def test_what_a_hook_raises_fails_its_episode() -> None:
    config = msgspec.structs.replace(CONFIG, rollout_sample_hook_path=[f"{__name__}:late"])
    report = (await play_function(SEARCH, Policy(TURNS), config=config)).report
    assert (report.outcome, "KeyError: 'late'" in str(report.error)) == (Outcome.ENV_ERROR, True)


async def hangs_on(args: Any, sample: Any) -> None:
    sample.reward = 1.0
    await anyio.sleep_forever()


async def test_a_hook_that_hangs_is_named_and_no_reward_of_0() -> None:
    config = msgspec.structs.replace(CONFIG, rollout_sample_hook_path=[f"{__name__}:hangs_on"])
    report = (await play_function(SEARCH, Policy(TURNS), config=config, limits=SHORT)).report
    assert report.outcome is Outcome.ENV_ERROR
    said = f"--rollout-sample-hook-path {__name__}:hangs_on did not return within 3 s"
    assert said in str(report.error)


async def test_the_functions_own_log_probabilities_are_read_by_nobody() -> None:
    function = edited(rollout_log_probs=lambda s: [-9.0] * s.response_length)
    played = await play_function(function, Policy([PARIS]))
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 0.0)
    (columns,) = columns_of(played)
    sampled = columns["kinds"] == SpanKind.SAMPLED
    assert set(columns["logprobs"][sampled].tolist()) == {-0.5}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (edited(tokens=lambda s: [*s.tokens[:-1], 7]), "with loss_mask 1, but was not sampled"),
        (edited(tokens=lambda s: [7, *s.tokens[1:]]), "the prompt of call 0 is another from token"),
        (edited(tokens=lambda s: [*s.tokens[:-1], 10**6]), "is no token; the tokenizer has ids"),
        (edited(tokens=lambda s: [*s.tokens[:-1], -1]), "it must be an int that is not negative"),
        (edited(tokens=None), "it must be a list of int"),
        (edited(tokens=lambda s: [7] * 4001), "more than the context of 4000"),
        (edited(loss_mask=[]), "loss_mask has 0 entries, and response_length is"),
        (edited(loss_mask=lambda s: [2] * s.response_length), "loss_mask[0] is 2"),
        (edited(loss_mask=lambda s: [0] * s.response_length), "nothing can be trained"),
        (edited(response_length=10**6), "response_length is 1000000"),
        (edited(reward="high"), "reward"),
        (edited(reward={"score": 1.0}), "name what is trained with --reward-key"),
    ],
)
async def test_a_sample_that_cannot_be_right_is_refused(function: Function, said: str) -> None:
    report = (await play_function(function, Policy([PARIS]))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert said in str(report.error)
    assert report.trajectories == []


async def returns_nothing(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)


async def returns_none_of_many(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    return [sample, "no sample"]


async def returns_no_samples(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    return []


async def asks_nothing(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    return sample


async def raises(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    await asked(args, sample, sampling_params)
    raise ValueError("mine")


async def exits(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    sys.exit(3)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (returns_nothing, "returned NoneType None; return the sample"),
        (returns_none_of_many, "returned[1] str 'no sample'"),
        (returns_no_samples, "returned an empty list"),
        (asks_nothing, "the agent made no call that was answered"),
        (raises, "ValueError: mine"),
        (exits, "SystemExit"),
    ],
)
async def test_a_function_that_gives_no_sample_has_a_fate(function: Function, said: str) -> None:
    report = (await play_function(function, Policy([PARIS]))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert said in str(report.error)


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        (Sample.Status.COMPLETED, Outcome.DONE, StopReason.TERMINATED),
        (Sample.Status.PENDING, Outcome.DONE, StopReason.TERMINATED),
        (Sample.Status.TRUNCATED, Outcome.DONE, StopReason.ENV_TRUNCATED),
        (Sample.Status.FAILED, Outcome.DONE, StopReason.POLICY_ERROR),
        (Sample.Status.ABORTED, Outcome.ENGINE_ERROR, StopReason.ERROR),
    ],
)
async def test_a_status_is_how_the_episode_ended(
    status: Any, outcome: Outcome, reason: StopReason
) -> None:
    report = (await play_function(edited(status=status, reward=0.25), Policy([PARIS]))).report
    assert (report.outcome, report.stop_reason) == (outcome, reason)
    assert report.reward == (0.25 if outcome is Outcome.DONE else 0.0)


async def test_a_turn_that_the_engine_cut_is_a_response_limit() -> None:
    report = (await play_function(edited(), Policy(["Paris and"], finish="length"))).report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.RESPONSE_LIMIT)


async def test_a_function_that_hangs_after_its_last_turn_is_an_error_and_no_reward_of_0() -> None:
    async def hangs(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        await anyio.sleep_forever()

    report = (await play_function(hangs, Policy([PARIS]), limits=SHORT)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "hangs did not return within 3 s (--episode-timeout-s)" in str(report.error)


async def test_a_function_that_still_asks_is_ended_by_its_time() -> None:
    async def slow(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        while True:
            await asked(args, sample, sampling_params)
            await anyio.sleep(0.2)  # a tool

    played = await play_function(slow, Policy(lambda prompt: PARIS), limits=SHORT)
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    one = len(CHAT.vocab.encode_trusted(PARIS))
    assert played.report.trajectories[0].num_sampled > one


async def test_a_budget_that_is_spent_answers_with_no_token() -> None:
    async def goes_on(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        while True:
            output = await asked(args, sample, sampling_params)
            if output["meta_info"]["finish_reason"]["type"] == "length":
                return sample

    two = msgspec.structs.replace(LIMITS, max_turns=2)
    played = await play_function(goes_on, Policy(lambda prompt: PARIS), limits=two)
    assert (played.report.outcome, played.report.error) == (Outcome.DONE, None)
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert played.report.trajectories[0].num_sampled == 2 * len(CHAT.vocab.encode_trusted(PARIS))


async def test_a_function_that_asks_on_after_its_budget_is_refused_in_the_end() -> None:
    async def for_ever(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        while True:
            await asked(args, sample, sampling_params)

    one = msgspec.structs.replace(LIMITS, max_turns=1)
    played = await play_function(for_ever, Policy(lambda prompt: PARIS), limits=one)
    assert played.report.outcome is Outcome.DONE
    assert played.report.stop_reason is StopReason.TURN_LIMIT


async def test_a_prompt_that_does_not_fit_is_filtered() -> None:
    small = msgspec.structs.replace(LIMITS, max_prompt=5)
    report = (await play_function(edited(), Policy([PARIS]), limits=small)).report
    assert report.outcome is Outcome.FILTERED


async def test_an_engine_that_is_lost_is_no_fault_of_the_functions() -> None:
    async def swallows(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        with suppress(RuntimeError):
            await asked(args, sample, sampling_params)
        return sample

    report = (await play_function(swallows, Policy([EngineError("lost")]))).report
    assert report.outcome is Outcome.ENGINE_ERROR


async def test_several_samples_are_several_trajectories_of_one_reward() -> None:
    async def twice(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        samples = [sample, Sample(prompt="Another agent.", reward=1.0)]
        sample.reward = 1.0
        for each in samples:
            await asked(args, each, sampling_params)
        return samples

    report = (await play_function(twice, Policy(["one<|im_end|>", "two<|im_end|>"]))).report
    assert (report.outcome, report.error, report.reward) == (Outcome.DONE, None, 1.0)
    assert [(meta.segment, meta.reward) for meta in report.trajectories] == [(0, 1.0), (1, 1.0)]


async def test_samples_of_one_episode_have_one_reward() -> None:
    async def unlike(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        await asked(args, sample, sampling_params)
        sample.reward = 1.0
        return [sample, Sample(tokens=[1], reward=0.5)]

    report = (await play_function(unlike, Policy([PARIS]))).report
    assert report.outcome is Outcome.ENV_ERROR
    assert "an episode has one reward" in str(report.error)


async def test_a_function_knows_whether_it_is_evaluated() -> None:
    seen: list[Any] = []

    async def look(args: Any, sample: Any, sampling_params: Any, evaluation: bool) -> Any:
        seen.append((evaluation, args.partial_rollout, sample.label, sample.index))
        args.anything = 1  # it may add to them
        await asked(args, sample, sampling_params)
        return sample

    for name in (None, "held"):
        await play_function(look, Policy([PARIS]), assignment={"evaluation": name})
    assert seen == [(False, False, "Paris", 0), (True, False, "Paris", 0)]


async def test_groups_and_samples_are_numbered_through_the_run() -> None:
    seen: list[tuple[int, int]] = []

    async def look(args: Any, sample: Any, sampling_params: Any) -> Any:
        seen.append((sample.group_index, sample.index))
        await asked(args, sample, sampling_params)
        return sample

    config = msgspec.structs.replace(CONFIG, n_samples_per_prompt=4)
    for mint, index in ((1, 0), (3, 2)):
        at = {"mint": mint, "id": EpisodeId(f"{mint:08d}", index)}
        await play_function(look, Policy([PARIS]), config=config, assignment=at)
    assert seen == [(0, 0), (2, 10)]


@pytest.mark.parametrize("is_chat", [False, True])
async def test_a_prompt_may_be_a_number_where_no_chat_is_written(is_chat: bool) -> None:
    """As the task of another program's that a function looks up."""
    seen: list[Any] = []

    async def look(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
        seen.append(sample.prompt)
        sample.prompt = "Where?"
        await asked(args, sample, sampling_params)
        return sample

    config = msgspec.structs.replace(CONFIG, apply_chat_template=is_chat)
    task = Task("t", {"input": 7, "label": "Paris"})
    played = await play_function(look, Policy([PARIS]), config=config, assignment={"task": task})
    assert seen == ([] if is_chat else [7])
    assert ("is no list of messages" in str(played.report.error)) == is_chat


async def test_a_sample_that_is_removed_stays_out_of_the_loss() -> None:
    played = await play_function(edited(remove_sample=True), Policy([PARIS]))
    (columns,) = columns_of(played)
    assert columns["excluded"].all()


async def test_a_response_that_the_function_has_not_written_is_read_from_its_tokens() -> None:
    report = (await play_function(edited(response=""), Policy(["Paris"]))).report
    assert report.reward == 1.0


def shouted(args: Any, sample: Any) -> None:
    sample.response = sample.response.upper()


async def test_hooks_see_the_response_that_the_function_has_not_written() -> None:
    config = msgspec.structs.replace(CONFIG, rollout_sample_hook_path=[f"{__name__}:shouted"])
    assignment = {"task": Task("t", TASK.row | {"label": "PARIS"})}
    function = edited(response="")
    report = (
        await play_function(function, Policy(["Paris"]), config=config, assignment=assignment)
    ).report
    assert (report.error, report.reward) == (None, 1.0)


async def test_the_function_of_the_page_is_played(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "agents.md").read_text()
    (block,) = [snippet.text for snippet in snippets(page) if snippet.name == "lookup.py"]
    (mine := tmp_path / "lookup.py").write_text(block)
    played = await play_function(mine, Policy(TURNS), reward=f"{mine}:reward_func")
    assert (played.report.outcome, played.report.reward) == (Outcome.DONE, 1.0)
    assert played.report.trajectories[0].num_turns == 2
