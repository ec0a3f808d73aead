"""Three roles of one policy, each with a reward of its own.

question --> solvers search, and answer from what they found, each by itself
         --> rewriters answer anew, from what all solvers found
         --> a selector says which answer is right
"""

import functools
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import anyio
import msgspec

from agentrl import Chat, Rollout, ServiceSpec, Step, ToolError
from agentrl.envs.search_r1 import SearchR1Env
from agentrl.envs.search_r1.answer import exact_match, final_answer
from agentrl.tools.retriever import Retriever
from agentrl.types import TaskSource

Message = dict[str, Any]
Play = Callable[[str], Coroutine[Any, Any, None]]

QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "parameters": QUERY}}
TOLD = {
    "solver": "Search for what the question is about, then answer it.",
    "rewriter": "Answer the question from what others have found. Do not search.",
    "selector": "Others have answered the question. Say which answer is right. Do not search.",
}
ENDING = "End with the answer alone, as in <answer> Beijing </answer>."


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """What a solver gives to `search`."""

    query: str


class Quorum(Rollout):
    """A row of `question` and `answer`, or `golden_answers`, all of which are right. A right answer
    is worth 1 to the one who gave it, and the episode is worth what its selector's is.

    Args (`--env-args`):
        num_parallel: solvers, and as many rewriters.
        retriever: `bm25`, or the address of a service.
        told: each role is told what to do, by a system message. The small model cannot read one.
    """

    metrics = {"passages": "Passages that the solvers of an episode found"}

    def __init__(
        self, *, num_parallel: int = 2, retriever: str = "bm25", told: bool = False
    ) -> None:
        super().__init__()
        self._num = num_parallel
        self._url = retriever if "://" in retriever else None
        self._told = told

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        return SearchR1Env.service_specs(args)

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        return SearchR1Env.train_tasks(args, seed=seed)

    async def solve(self, task: dict[str, Any], chat: Chat) -> Step:
        async with Retriever(self._url or chat.services["retriever"]) as retriever:
            panel = _Panel(task["question"], chat, retriever, is_told=self._told)
            solutions = await _answers(panel, "solver", self._num, panel.solve)
        passages = panel.passages()
        rewrite = functools.partial(panel.read, [*passages, *solutions])
        rewritten: list[str] = []
        if passages or solutions:
            rewritten = await _answers(panel, "rewriter", self._num, rewrite)
        if rewritten:
            await panel.read(rewritten, "selector")
        golds = task.get("golden_answers") or [task["answer"]]
        rewards = {name: float(exact_match(text, *golds)) for name, text in panel.said.items()}
        metrics = {"passages": float(len(passages))}
        return Step(reward=rewards.get("selector", 0.0), rewards=rewards, metrics=metrics)


class _Panel:
    """All who play in one episode. `said`: what each said last, by name."""

    def __init__(self, question: str, chat: Chat, retriever: Retriever, *, is_told: bool) -> None:
        self.said: dict[str, str] = {}
        self._question, self._chat, self._retriever = question, chat, retriever
        self._is_told = is_told
        self._found: dict[str, list[str]] = {}

    async def solve(self, name: str) -> None:
        """Search, and answer from what was found; or answer at once."""
        asked = await self._ask(name)
        if calls := asked.get("tool_calls"):
            found = [await _search(self._retriever, call) for call in calls]
            self._found[name] = [passage for each in found for passage in each]
            shown = [_shown(call, each) for call, each in zip(calls, found, strict=True)]
            await self._ask(name, asked, *shown)

    async def read(self, lines: list[str], name: str) -> None:
        """Answer from `lines`, which are shown as what a search for the question has found."""
        function = {"name": "search", "arguments": json.dumps({"query": self._question})}
        call = {"id": "call_0", "type": "function", "function": function}
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        await self._ask(name, asked, _shown(call, lines))

    def passages(self) -> list[str]:
        """What all have found, each passage once."""
        return [*dict.fromkeys(each for name in sorted(self._found) for each in self._found[name])]

    async def _ask(self, name: str, *read: Message) -> Message:
        messages: list[Message] = [{"role": "user", "content": self._question}, *read]
        if self._is_told:
            told = f"{TOLD[name.partition('#')[0]]} {ENDING}"
            messages.insert(0, {"role": "system", "content": told})
        message = await self._chat.complete(messages, [SEARCH], model=name)
        self.said[name] = message["content"] or ""
        return message


async def _answers(panel: _Panel, role: str, num: int, play: Play) -> list[str]:
    """Play a role `num` times at once; the answers, as the next role reads them."""
    names = [f"{role}#{n}" for n in range(num)]
    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(play, name)
    answers = [final_answer(panel.said[name]) for name in names]
    return [f" The answer is {answer}." for answer in answers if answer]


async def _search(retriever: Retriever, call: Message) -> list[str]:
    """What a call finds; nothing where it is no good."""
    try:
        query = msgspec.json.decode(call["function"]["arguments"], type=Query)
        return await retriever.search(query.query, 3)
    except (msgspec.MsgspecError, ToolError):
        return []


def _shown(call: Message, lines: list[str]) -> Message:
    text = "\n".join(lines) or "no passage was found"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}
