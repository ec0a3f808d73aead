"""An agent of Strands (https://strandsagents.com) is trained as it is: its loop, its tool."""

from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from strands import Agent, tool
from strands.models.openai import OpenAIModel

from agentrl import Chat, rollout
from agentrl.envs.rewards.dapo import dapo
from agentrl.tools.sandbox import SandboxLimits, open_sandbox

LIMITS = SandboxLimits(max_output_bytes=8192)


@tool  # type: ignore[untyped-decorator]
async def python(code: str) -> str:
    """Run a Python program and read what it prints.

    Args:
        code: the program; print what you want to know
    """
    sandbox = await open_sandbox(allow_unsafe=False)
    result = await sandbox.run(code, LIMITS)
    return result.stdout or f"error: {result.stderr[-1000:]}"


@rollout("strands", failures={"strands.types.exceptions:MaxTokensReachedException": 0.0})
async def solve(task: dict[str, Any], chat: Chat) -> float:
    """A row of `prompt` and `label`; a right answer, by the rule of the DAPO data, is worth 1."""
    http = DefaultAsyncHttpxClient(verify=False)  # no certificates are needed on loopback
    async with AsyncOpenAI(
        base_url=chat.base_url, api_key=chat.api_key, http_client=http
    ) as client:
        model = OpenAIModel(client=client, model_id=chat.model)
        agent = Agent(model=model, tools=[python], callback_handler=None)
        result = await agent.invoke_async(task["prompt"][-1]["content"])
    graded = await dapo(str(result), task["label"], task)
    return float(graded["acc"])
