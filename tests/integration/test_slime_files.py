"""What slime's user files asked and returned, replayed: the same episodes, rewards and masks."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from agentrl.algorithms.custom_rewards import REWARDS
from agentrl.config.run import RunConfig
from agentrl.types import EpisodeId, GroupRows
from agentrl.user_code import load
from scripts.slime_files.distilling import teaching
from scripts.slime_files.overheard import serving
from scripts.slime_files.playing import Engine, Stage, episode_of, recorded_turns, with_flags
from scripts.slime_files.records import Case, Record, differences, names, open_record
from tests.integration import slime_replayed

pytestmark = pytest.mark.anyio

OPD = "on_policy_distillation"
REPLAYED = "tests.integration.slime_replayed"


@asynccontextmanager
async def outside(case: Case, flags: list[str]) -> AsyncIterator[list[str]]:
    """Whoever stands outside as the record has it: a teacher. The flags that lead there."""
    if case.taught is None:
        yield flags
        return
    (asked,) = case.outside
    told = [entry[0] for entry in asked.reply["meta_info"]["input_token_logprobs"]]
    known = {tuple(asked.request["input_ids"]): told}
    async with serving(teaching(known), []) as port:
        yield with_flags(flags, rm_url=f"http://127.0.0.1:{port}/generate")


async def replayed(record: Record, case: Case, folder: Path) -> list[str]:
    """Where the episode of a case is another than the recorded one."""
    flags = record.flags
    if case.given is not None:
        generate, reward = f"{REPLAYED}:generate", f"{REPLAYED}:reward_func"
        flags = with_flags(flags, custom_generate_function_path=generate, custom_rm_path=reward)
    rows = [one.row for one in record.cases]
    place = [one.name for one in record.cases].index(case.name)
    slime_replayed.play(case)
    engine = Engine(recorded_turns(case.turns))
    async with outside(case, flags) as led, Stage(led, rows, folder) as stage:
        episode = episode_of(await stage.play(place, engine))
    return [*differences(case.turns, engine.turns), *differences(case.episode, episode)]


@pytest.mark.parametrize(
    ("name", "case"), [(name, case.name) for name in names() for case in open_record(name).cases]
)
async def test_a_recorded_exchange_makes_the_same_episode(
    name: str, case: str, tmp_path: Path
) -> None:
    record = open_record(name)
    (found,) = [one for one in record.cases if one.name == case]
    assert await replayed(record, found, tmp_path) == []


@pytest.mark.parametrize("name", names())
def test_slimes_files_and_agentrl_know_the_same_of_trained_tokens(name: str) -> None:
    """Which of two samples with the same tokens has which call's, is all the same."""
    for case in open_record(name).cases:
        theirs: list[float | None] = []
        for sample in case.returned:
            told = zip(sample.logprobs or [], sample.loss_mask or [], strict=False)
            theirs += [logprob for logprob, mark in told if mark]
        spans = [span for spans in case.episode.trajectories for span in spans]
        ours = [logprob for span in spans for logprob in span.logprobs]
        assert not theirs or Counter(theirs) == Counter(ours)


@pytest.mark.parametrize("name", names())
def test_a_sample_that_slimes_file_gave_a_reward_has_earned_that(name: str) -> None:
    for case in open_record(name).cases:
        episode = case.episode
        alike = [episode.reward] * len(episode.trajectories)
        earned = list(episode.rewards.values()) or alike
        for sample, spans, reward in zip(case.returned, episode.trajectories, earned, strict=False):
            if sample.reward is not None:
                assert sample.tokens == [id_ for span in spans for id_ in span.ids]
                assert sample.reward == reward


@pytest.mark.parametrize("place", range(len(open_record(OPD).cases)))
def test_a_teacher_of_a_run_says_what_slimes_functions_read(place: int) -> None:
    record = open_record(OPD)
    case = record.cases[place]
    ((*_, response),) = case.episode.trajectories
    assert case.taught is not None
    assert (response.kind, response.teacher) == ("sampled", case.taught.logprobs)
    flag = "--custom-reward-post-process-path"
    rewards = load(REWARDS, record.flags[record.flags.index(flag) + 1])
    group = GroupRows("g", 1, "t", [EpisodeId("g", 0)], [case.episode.reward], [{}], [])
    assert rewards(RunConfig(), [group]) == [[case.taught.reward]]


@pytest.mark.parametrize("mark", [0, 1])
async def test_a_mask_that_is_forged_by_one_token_makes_another_episode(
    mark: int, tmp_path: Path
) -> None:
    record = open_record("retool")
    case = record.cases[0]
    (sample,) = case.returned
    mask = list(sample.loss_mask or ())
    mask[-1 - mask[::-1].index(mark)] = 1 - mark
    forged = msgspec.structs.replace(
        case, returned=[msgspec.structs.replace(sample, loss_mask=mask)]
    )
    found = "\n".join(await replayed(record, forged, tmp_path))
    # a token of the tool is refused, and one of the model's is not trained
    assert "env_error" in found if mark == 0 else ".trajectories[0]" in found
    assert ("was not sampled there" in found) == (mark == 0)


async def test_a_reward_that_is_another_is_seen(tmp_path: Path) -> None:
    record = open_record("retool")
    case = record.cases[0]
    (judged,) = case.judged
    lower = msgspec.structs.replace(judged, reward=judged.reward | {"score": 0.5})
    found = await replayed(record, msgspec.structs.replace(case, judged=[lower]), tmp_path)
    assert any(line.startswith(".reward: ") for line in found)


async def test_the_reward_of_one_sample_of_several_is_seen(tmp_path: Path) -> None:
    record = open_record("multi_agent")
    case = next(one for one in record.cases if one.episode.rewards)
    *others, last = case.returned
    more = msgspec.structs.replace(last, reward=last.reward + 0.5)
    found = await replayed(
        record, msgspec.structs.replace(case, returned=[*others, more]), tmp_path
    )
    assert any(line.startswith(f".rewards.policy#{len(others)}: ") for line in found)
