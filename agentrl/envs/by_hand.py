"""An episode played by a person: lines in place of a policy's turns.

a line        the turn's text; the Env scores it as a final answer
NAME {...}    a call of the tool NAME, with its arguments as JSON
end of input  the episode is left
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import anyio.to_thread

from agentrl.envs.check.arguments import made_up
from agentrl.envs.check.subject import Subject
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, ToolCall
from agentrl.errors import AgentRLError, ConfigError, EnvError
from agentrl.user_code import hint
from agentrl.user_traceback import words_of

__all__ = ["play", "read_turn"]


async def play(subject: Subject, lines: TextIO, out: TextIO) -> float | None:
    """Play one episode between `lines` and `out`; its reward, or None when it was left.

    Raises ConfigError, with the line, when the Env raises.
    """
    env = subject.make()
    try:
        with _blaming(env, "reset"):
            prompt = await subject.reset(env)
        for message in prompt:
            _show(message, out)
        out.write(f"\n{_help(env)}\n")
        reward = await _turns(env, lines, out)
    except BaseException:
        with suppress(Exception):  # what came first is what to mend first
            await env.close()
        raise
    with _blaming(env, "close"):
        await env.close()
    return reward


@contextmanager
def _blaming(env: Env, method: str) -> Iterator[None]:
    """What the Env raises becomes a ConfigError with its line; agentrl's own errors stay, but an
    EnvError, which is the Env's too."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, AgentRLError) and not isinstance(error, EnvError):
            raise
        raise ConfigError(f"{type(env).__qualname__}.{method} raised {words_of(error)}") from error


async def _turns(env: Env, lines: TextIO, out: TextIO) -> float | None:
    reward, index = 0.0, 0
    while True:
        out.write("\n> ")
        out.flush()
        line = await anyio.to_thread.run_sync(lines.readline, abandon_on_cancel=True)
        if not line:
            out.write("left before its end: no reward\n")
            return None
        if "<tool_call>" in line:
            out.write("here a tool is called as it says above: its name, then its arguments\n")
            continue
        name = line.partition(" ")[0].strip()
        if re.fullmatch(r"\w+ \{.*\}\s*", line) and name not in env.tools:
            out.write(f"there is no tool {name!r}{hint(name, env.tools)}\n")
            continue
        with _blaming(env, "step"):
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
    calls = [f"{name} {made_up(tool.spec.parameters).decode()}" for name, tool in env.tools.items()]
    tools = f"; a tool, as in: {' or '.join(calls)}" if calls else ""
    return f"Write an answer{tools}. End of input leaves the episode."
