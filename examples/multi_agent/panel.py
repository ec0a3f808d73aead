"""Two roles of one policy: scouts search, each by itself; a speaker answers from what they found.

question --> scout, scout, ... --> search --> passages --> speaker --> answer
"""

from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from agentrl import Chat, Rollout, ServiceSpec, Step, ToolError
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.answer import exact_match
from agentrl.tools.retriever import Retriever
from agentrl.types import TaskSource

Message = dict[str, Any]

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": QUERY}}


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """What a scout gives to `search`."""

    query: str


class Panel(Rollout):
    """A row of `question` and `answer`, or `golden_answers`, all of which are right. The speaker
    earns 1 for a right answer, and so does the episode; a scout for passages that have the answer.
    """

    metrics = {
        "passages": "passages that the scouts of an episode found",
        "scouted": "share of episodes whose first scout found the answer",
    }

    def __init__(self, *, num_scouts: int = 2, retriever: str = "bm25") -> None:
        super().__init__()
        self._num_scouts = num_scouts
        self._url = retriever if "://" in retriever else None

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        return SearchR1Env.service_specs(args)

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        return SearchR1Env.train_tasks(args, seed=seed)

    async def solve(self, task: dict[str, Any], chat: Chat) -> Step:
        question = {"role": "user", "content": task["question"]}
        golds = task.get("golden_answers") or [task["answer"]]
        found: dict[str, tuple[Message, list[str]]] = {}

        async def look(scout: str) -> None:
            said = await chat.complete([question], [SEARCH], model=scout)
            found[scout] = said, await self._passages(said, retriever)

        retriever = Retriever(self._url or chat.services["retriever"])
        retriever.open()
        try:
            async with anyio.create_task_group() as group:
                for number in range(self._num_scouts):
                    group.start_soon(look, f"scout#{number}")
        finally:
            await retriever.close()
        said = await chat.complete([question, *_shown(found)], [SEARCH], model="speaker")
        reward = float(exact_match(said["content"] or "", *golds))
        rewards = {scout: _worth(passages, golds) for scout, (_, passages) in found.items()}
        num_passages = sum(len(passages) for _, passages in found.values())
        return Step(
            reward=reward,
            rewards=rewards | {"speaker": reward},
            metrics={"passages": float(num_passages), "scouted": rewards["scout#0"]},
        )

    async def _passages(self, said: Message, retriever: Retriever) -> list[str]:
        """What a scout's first call finds; nothing where it called nothing, or wrongly."""
        for call in said.get("tool_calls", ()):
            try:
                query = msgspec.json.decode(call["function"]["arguments"], type=Query)
                return await retriever.search(query.query, 3)
            except (msgspec.MsgspecError, ToolError):
                return []
        return []


def _worth(passages: list[str], golds: list[str]) -> float:
    """Whether a scout has found the answer."""
    return float(any(gold in passage for gold in golds for passage in passages))


def _shown(found: Mapping[str, tuple[Message, list[str]]]) -> list[Message]:
    """A call and all passages, as the speaker reads them: each passage once."""
    calls = [said["tool_calls"][0] for _, (said, passages) in sorted(found.items()) if passages]
    if not calls:
        return []
    told = dict.fromkeys(p for _, (_, passages) in sorted(found.items()) for p in passages)
    return [
        {"role": "assistant", "content": None, "tool_calls": calls[:1]},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "\n".join(told)},
    ]
