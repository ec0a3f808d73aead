"""A row's metadata and tools: under which keys, in which prompt, and what a call of one is."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from agentrl.config.run import RunConfig
from agentrl.envs import AssistantTurn, ToolCall, load_env
from agentrl.envs.single_turn import SingleTurnEnv
from agentrl.envs.tasks import open_eval_sets, open_source
from agentrl.errors import EnvError
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.qwen import QwenFormat
from agentrl.types import Task
from tests.unit.row_files import write_parquet
from tests.unit.test_actors_demonstration import DIALOGUE, chat, play

__all__ = ["chat"]

INNER = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}}
SCHEMA = {"type": "function", "function": INNER}


def text_as_reward(text: str, label: str, task: dict[str, Any]) -> float:
    """Keeps what it was given."""
    task["text"] = text
    return 1.0


OWN = f"{__name__}:text_as_reward"


def call(name: str) -> AssistantTurn:
    calls = [ToolCall("c", name, b'{"city": "Lima"}')]
    return AssistantTurn("I look.", calls, None, "stop", 0)


def test_a_task_has_its_metadata_and_tools_under_one_name(tmp_path: Path) -> None:
    row = {"extra_info": {"index": 7}, "functions": json.dumps([SCHEMA]), "input": "x"}
    path = str(write_parquet(tmp_path / "rows.parquet", [row]))
    config = RunConfig(
        env="single-turn",
        prompt_data=path,
        eval_prompt_data=["held", path],
        metadata_key="extra_info",
        tool_key="functions",
    )
    env = load_env("single-turn")

    async def first() -> Task:
        return await anext(aiter(open_source(config, env).tasks()))

    for task in (anyio.run(first), open_eval_sets(config, env)["held"][0]):
        assert task.row["metadata"] == {"index": 7}
        assert json.loads(task.row["tools"]) == [SCHEMA]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "tools", [[SCHEMA], [INNER], json.dumps([SCHEMA]), [{**SCHEMA, "x": None}]]
)
async def test_the_tools_of_a_row_are_shown_in_its_prompt(tools: Any) -> None:
    env = SingleTurnEnv()
    await env.reset(seed=0, task={"input": "x", "label": "y", "tools": tools})
    assert list(env.schemas) == [SCHEMA]


@pytest.mark.anyio
@pytest.mark.parametrize("tools", ["no json", "3", [3], ["search"], [{"function": {}}]])
async def test_tools_that_are_no_schemas_are_refused(tools: Any) -> None:
    with pytest.raises(EnvError, match=r"the tools of the row \(--tool-key\)"):
        await SingleTurnEnv().reset(seed=0, task={"input": "x", "label": "y", "tools": tools})


@pytest.mark.anyio
async def test_a_call_of_a_tool_that_nothing_runs_ends_the_episode_and_is_scored() -> None:
    env, task = SingleTurnEnv(reward=OWN), {"input": "x", "tools": [SCHEMA]}
    await env.reset(seed=0, task=task)
    step = await env.step(call("weather"))
    assert step.terminated
    assert task["text"] == 'I look.\n{"name": "weather", "arguments": {"city": "Lima"}}'
    assert (await env.step(call("other"))).terminated


@pytest.mark.anyio
async def test_exact_match_reads_the_text_beside_a_call() -> None:
    env = SingleTurnEnv()
    await env.reset(seed=0, task={"input": "x", "label": "I look.", "tools": [SCHEMA]})
    assert (await env.step(call("weather"))).reward == 1.0


@pytest.mark.anyio
async def test_a_demonstration_shows_the_tools_of_its_row(chat: ChatFormat) -> None:
    def tokens(columns: Sequence[Any]) -> list[int]:
        return list(memoryview(columns[0]).cast("B"))

    chat = QwenFormat(chat.vocab, tools_in_prompt=True)
    shown = await play(chat, {"messages": DIALOGUE, "tools": [SCHEMA]})
    as_text = await play(chat, {"messages": DIALOGUE, "tools": json.dumps([INNER])})
    without = await play(chat, {"messages": DIALOGUE})
    assert tokens(shown.columns) == tokens(as_text.columns) != tokens(without.columns)
