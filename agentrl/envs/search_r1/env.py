"""`search-r1-local`: answer a question about the bundled facts, searching as often as needed.

The model may call `search` and ends the episode with a turn that calls nothing; the reward is 1
when the last `<answer> .. </answer>` of that turn is right. Only the turn's own text is read: what
a passage says can never be an answer.
"""

import random
import sys
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import Message
from agentrl.envs.registry import register
from agentrl.envs.search_r1.answer import exact_match
from agentrl.envs.search_r1.questions import SearchR1Source, eval_tasks
from agentrl.errors import ConfigError, EnvError
from agentrl.tools.retriever import Retriever
from agentrl.tools.tool import tool
from agentrl.types import Task, TaskSource

__all__ = ["RETRIEVER", "SearchR1Env"]

#: Name of the service that the Env needs.
RETRIEVER = "retriever"


@register("search-r1-local")
class SearchR1Env(Env):
    """One question. `--env-args` may set `topk`, the passages a search returns (1..20)."""

    reward_reads_text_only = True

    def __init__(self, *, topk: int = 3) -> None:
        super().__init__()
        if not 1 <= topk <= 20:
            raise ConfigError(f"search-r1-local: topk is {topk}; it must lie in 1..20")
        self._topk = topk
        self._order = random.Random()
        self._gold = ""
        self._retriever: Retriever | None = None

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        """The BM25 retriever over the bundled corpus."""
        del args
        module = "agentrl.envs.search_r1.retriever"
        argv = [sys.executable, "-m", module, "--host", "{host}", "--port", "{port}"]
        return {RETRIEVER: ServiceSpec(RETRIEVER, argv, "/health")}

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> TaskSource:
        """Endless questions about the training entities."""
        del args
        return SearchR1Source(seed)

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> dict[str, list[Task]]:
        """Questions about entities that no training question names."""
        del args
        return {"heldout": eval_tasks("heldout")}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        if missing := {"question", "answer"} - task.keys():
            raise EnvError(f"the task lacks {sorted(missing)}; its keys are {sorted(task)}")
        self._order = random.Random(seed)
        self._gold = task["answer"]
        return [Message.user(task["question"])]

    @tool(timeout_s=90, max_output_bytes=4096)
    async def search(self, query: Annotated[str, Meta(min_length=1, max_length=200)]) -> str:
        """Search the corpus for passages, one a line, in no particular order.

        Args:
            query: what to look for
        """
        passages = await self.retrieve(query)
        # The best passage must be recognised by what it says, not by where it stands.
        self._order.shuffle(passages)
        return "\n".join(passages) if passages else "no passage was found"

    async def retrieve(self, query: str) -> list[str]:
        """The best passages for `query`, best first."""
        if self._retriever is None:
            self._retriever = Retriever(self.services[RETRIEVER])
            self._retriever.open()
        return await self._retriever.search(query, self._topk)

    async def score(self, text: str) -> float:
        return float(exact_match(text, self._gold))

    async def close(self) -> None:
        if self._retriever is not None:
            await self._retriever.close()
