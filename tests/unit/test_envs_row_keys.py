"""Where a row holds its prompt, its label and its dialogue; and rows that have no label."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.envs import Message
from agentrl.envs.check.preflight import preflight
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.errors import ConfigError, DataError, EnvError
from tests.unit.row_files import write_parquet
from tests.unit.test_actors_demonstration import CALL, DIALOGUE, chat, play

__all__ = ["chat"]

pytestmark = pytest.mark.anyio


def length(text: str, label: str, task: dict[str, Any]) -> float:
    """A reward that looks at no label, and tells which one it was given."""
    task["given"] = label
    return float(len(text))


LENGTH = f"{__name__}:length"


async def test_a_key_may_lead_into_a_value() -> None:
    env = SingleTurnEnv(input_key="extra.question", label_key="reward_model.ground_truth.target")
    row = {"extra": {"question": "Who?"}, "reward_model": {"ground_truth": {"target": "Ann"}}}
    assert await env.reset(seed=0, task=row) == [Message.user("Who?")]
    assert await env.score("Ann") == 1.0


async def test_a_key_with_dots_in_it_comes_first() -> None:
    env = SingleTurnEnv(label_key="a.b")
    await env.reset(seed=0, task={"input": "x", "a.b": "whole", "a": {"b": "inner"}})
    assert await env.score("whole") == 1.0


async def test_a_row_needs_no_label_where_its_reward_is_ones_own() -> None:
    env, task = SingleTurnEnv(reward=LENGTH), {"input": "x"}
    await env.reset(seed=0, task=task)
    assert (await env.score("four"), task["given"]) == (4.0, "")
    task = {"input": "x", "label": "seen"}
    await env.reset(seed=0, task=task)
    assert (await env.score("four"), task["given"]) == (4.0, "seen")


@pytest.mark.parametrize(
    "args", [{}, {"reward": "exact"}, {"reward": LENGTH, "label_key": "label"}]
)
async def test_a_label_is_demanded_where_it_is_compared_or_named(args: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match="the task has no 'label'"):
        await SingleTurnEnv(**args).reset(seed=0, task={"input": "x"})


async def test_messages_of_a_column_have_nulls_for_what_they_lack(chat: Any) -> None:
    prompt = [{"role": "user", "content": "2+2?", "tool_call_id": None}]
    assert await SingleTurnEnv().reset(seed=0, task={"input": prompt, "label": "4"}) == [
        Message.user("2+2?")
    ]
    lacking = {"content": None, "tool_calls": None, "tool_call_id": None}
    call = {**CALL, "id": None, "type": None}
    said: list[dict[str, Any]] = [{**lacking, **message} for message in DIALOGUE]
    said[1]["tool_calls"] = [call]
    row = {"deep": {"messages": said}, "other": 1}
    with_nulls = await play(chat, row, key="deep.messages")
    assert with_nulls.columns == (await play(chat, {"messages": DIALOGUE})).columns


def config_of(path: Path, **settings: Any) -> RunConfig:
    return RunConfig(env="single-turn", prompt_data=str(path), **settings)


def test_rows_of_search_r1_are_read_as_they_are(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "nq",
            "prompt": [{"role": "user", "content": "Who wrote it?"}],
            "reward_model": {"style": "rule", "ground_truth": {"target": ["Ann", "Anne"]}},
        }
    ]
    path = write_parquet(tmp_path / "train.parquet", rows)
    keys = {"input_key": "prompt", "label_key": "reward_model.ground_truth.target"}
    (note,) = preflight(config_of(path, env_args=keys))
    assert note.startswith("no --rm-type and no --custom-rm-path: the reward is 1 where")
    with pytest.raises(ConfigError, match=r"has no 'reward_model\.target'; its keys are \['data_s"):
        preflight(config_of(path, env_args={**keys, "label_key": "reward_model.target"}))


def test_a_prompt_of_another_type_is_told_before_anything_starts(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "train.parquet", [{"input": 5, "label": "x"}])
    with pytest.raises(ConfigError, match="'input' is no list of messages"):
        preflight(config_of(path))
    image = write_parquet(tmp_path / "image.parquet", [{"input": "x", "images": b"\xff\xd8"}])
    with pytest.raises(DataError, match=r"image\.parquet row 1: 'images' is 2 bytes that are no"):
        preflight(config_of(image))
