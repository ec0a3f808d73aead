"""Agents as they come: a framework from PyPI that is trained unchanged, and programs, which leave
no process."""

from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentrl.envs.rollout import Chat
from agentrl.types import Outcome, Task
from tests.integration.rollout_programs import program
from tests.unit.rollout_ground import ASSIGNMENT, CALL, CHAT, Policy, check_tokens, columns_of, play

pytestmark = pytest.mark.anyio


async def test_an_agent_framework_from_pypi_is_trained_unchanged() -> None:
    async def solve(task: dict[str, Any], chat: Chat) -> float:
        provider = OpenAIProvider(base_url=chat.base_url, api_key=chat.api_key)
        agent = Agent(OpenAIChatModel("gpt-4o", provider=provider), instructions="Use the tool.")

        @agent.tool_plain
        def double(number: int) -> int:
            """Double a number."""
            calls.append(number)
            return 2 * number

        result = await agent.run(task["question"])
        return float(result.output == "It is 42.")

    calls: list[int] = []
    policy = Policy([f"I double it.{CALL}", "It is 42.<|im_end|>"])
    played = await play(solve, policy)
    assert played.report.error is None
    assert calls == [21]
    assert played.report.reward == 1.0
    assert [meta.num_turns for meta in played.report.trajectories] == [2]
    assert "Use the tool." in policy.prompts[0]
    check_tokens(played, policy)


#: Children that try to outlive it: in the session, and in one of their own.
LEAVES_CHILDREN = """
sleep = [sys.executable, "-c", "import time; time.sleep(600)", key]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
"""


TASK = Task("t", {"question": "Double 21.", "answer": "42"})


def with_argument(key: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if key in (process.info["cmdline"] or ()) and process.info["status"] != "zombie"
    ]


async def test_a_program_is_an_agent_and_leaves_no_process(tmp_path: Path) -> None:
    keys: list[str] = []

    class Watched(program(tmp_path, before=LEAVES_CHILDREN)):  # type: ignore[misc]
        async def solve(self, task: dict[str, Any], chat: Chat) -> Any:
            keys.append(chat.api_key)
            return await super().solve(task, chat)

    policy = Policy(["42<|im_end|>"])
    played = await play(Watched, policy, task=TASK)
    assert played.report.error is None
    assert played.report.reward == 1.0
    assert played.report.metrics["seed"] == ASSIGNMENT.seed
    assert with_argument(keys[0]) == []
    check_tokens(played, policy)
    (columns,) = columns_of(played)
    assert "I print what I like" not in CHAT.vocab.decode(columns["tokens"].tolist())


async def test_a_program_that_is_cancelled_is_ended_with_its_children(tmp_path: Path) -> None:
    keys: list[str] = []
    are_up = anyio.Event()

    class Watched(program(tmp_path, "time.sleep(600)", before=LEAVES_CHILDREN)):  # type: ignore[misc]
        async def solve(self, task: dict[str, Any], chat: Chat) -> Any:
            keys.append(chat.api_key)
            return await super().solve(task, chat)

    def say(prompt: str) -> str:
        are_up.set()
        return "42<|im_end|>"

    async def interrupt() -> None:
        await are_up.wait()
        assert len(with_argument(keys[0])) == 2
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(interrupt)
        await play(Watched, Policy(say), task=TASK)
    assert with_argument(keys[0]) == []


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("sys.exit('I give up')", "exit code 1: I give up"),
        ("print('no reward', flush=True); os._exit(0)", "'no reward', which is no reward"),
        ("sys.stdout.flush(); os._exit(0)", "'<tool_call>I print what I like</tool_call>'"),
        ("print('NaN', flush=True); os._exit(0)", "'NaN', which is no reward"),
        ("print('true', flush=True); os._exit(0)", "'true', which is no reward"),
    ],
)
async def test_a_program_that_fails_or_tells_no_reward_is_an_env_error(
    tmp_path: Path, rest: str, said: str
) -> None:
    report = (await play(program(tmp_path, rest), Policy(["42<|im_end|>"]), task=TASK)).report
    assert report.outcome is Outcome.ENV_ERROR
    assert said in str(report.error)
