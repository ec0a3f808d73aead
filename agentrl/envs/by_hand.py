"""An episode played by a person: lines in place of a policy's turns.

a line        the turn's text; the Env scores it as a final answer
NAME {...}    a call of the tool NAME, with its arguments as JSON
end of input  the episode is left
"""

from typing import TextIO

import anyio.to_thread

from agentrl.envs.contract import Ground
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, ToolCall

__all__ = ["play", "read_turn"]


async def play(ground: Ground, lines: TextIO, out: TextIO) -> float | None:
    """Play one episode between `lines` and `out`; its reward, or None when it was left."""
    env = ground.make()
    try:
        for message in await ground.reset(env):
            _show(message, out)
        out.write(f"\n{_help(env)}\n")
        return await _turns(env, lines, out)
    finally:
        await env.close()


async def _turns(env: Env, lines: TextIO, out: TextIO) -> float | None:
    reward, index = 0.0, 0
    while True:
        out.write("\n> ")
        out.flush()
        line = await anyio.to_thread.run_sync(lines.readline, abandon_on_cancel=True)
        if not line:
            out.write("left before its end: no reward\n")
            return None
        step = await env.step(read_turn(env, line.strip(), index))
        index += 1
        reward += step.reward
        for message in step.messages:
            _show(message, out)
        if step.done:
            how = "terminated" if step.terminated else "truncated"
            out.write(f"{how} after {index} turns, reward {reward:g}\n")
            return reward
        if step.reward:
            out.write(f"reward so far {reward:g}\n")


def read_turn(env: Env, line: str, index: int) -> AssistantTurn:
    """A line as the turn that a policy would have sampled."""
    name, _, arguments = line.partition(" ")
    if name not in env.tools:
        return AssistantTurn(line, [], None, "stop", index)
    call = ToolCall(f"call_{index}_0", name, (arguments.strip() or "{}").encode())
    return AssistantTurn("", [call], None, "stop", index)


def _show(message: Message, out: TextIO) -> None:
    out.write(f"[{message.role}] {message.content}\n")


def _help(env: Env) -> str:
    calls = [
        f"{name} {{{', '.join(map(repr, tool.spec.parameters.get('properties', ())))}: ...}}"
        for name, tool in env.tools.items()
    ]
    tools = f"; a tool: {' or '.join(calls)}".replace("'", '"') if calls else ""
    return f"Write an answer{tools}. End of input leaves the episode."
