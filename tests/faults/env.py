"""The tasks of a lab: turns, rewarded by the length of their text modulo 3. Their points are those
at which user code hangs or takes its worker down."""

import json
from typing import Any

import anyio

from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from tests.faults.points import reached

__all__ = ["LabEnv", "SavedEnv"]


class LabEnv(Env):
    """No prompt is like another: it names the task and the episode's seed."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        reached("reset")
        return [Message.user(f"{task['name']} {seed % 10**6}")]

    async def step(self, turn: AssistantTurn) -> Step:
        if reached("step", turn=turn.index) == "hang":
            await anyio.sleep_forever()
        reward = float(len(turn.text.encode()) % 3)
        return Step(messages=[Message.user("on")], reward=reward, terminated=turn.index == 1)


class SavedEnv(LabEnv):
    """Four turns, and it can be saved between them. Comes to the point `late` in the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    async def step(self, turn: AssistantTurn) -> Step:
        self.heard.append(turn.text)
        is_last = len(self.heard) == 4
        if is_last:
            reached("late")
        reward = float(sum(len(text.encode()) for text in self.heard) % 3) if is_last else 0.0
        return Step(messages=[Message.user("on")], reward=reward, terminated=is_last)

    async def snapshot(self) -> bytes:
        return json.dumps(self.heard).encode()

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        self.heard = json.loads(state)
