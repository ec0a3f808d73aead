"""`search-r1`: answer a question, searching as often as needed.

The model may call `search` and ends the episode with a turn that calls nothing; the reward is 1
when the last `<answer> .. </answer>` of that turn is right, unless `--env-args` weigh its parts
otherwise. Only the turn's own text is read: what a passage says can never be an answer.
"""

import random
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import Message
from agentrl.envs.registry import register
from agentrl.envs.search_r1.answer import final_answer, normalize
from agentrl.envs.search_r1.indexes import INDEXES
from agentrl.envs.search_r1.options import RETRIEVER, Rewards, service_of, url_of
from agentrl.envs.search_r1.questions import SearchR1Source, eval_tasks
from agentrl.errors import ConfigError, EnvError
from agentrl.tools.retriever import Retriever
from agentrl.tools.tool import tool
from agentrl.types import Task, TaskSource

__all__ = ["RETRIEVER", "SearchR1Env"]


@register("search-r1-local")
class SearchR1Env(Env):
    """One question, about the bundled facts unless the tasks are the user's own: rows of `question`
    and `answer`, a text or a list of texts that are all right.

    Args (`--env-args`):
        topk: passages that a search returns (1..20).
        retriever: `bm25` or `dense`, over the bundled passages; or the address of a service that
            speaks Search-R1's `POST /retrieve`, as in `http://10.0.0.5:8000`.
        shuffled: passages are shown in no particular order, and not the best one first.
        em_weight, f1_weight, format_weight: what exact match, F1 of the answer's words, and a turn
            that ends with one whole answer add to the reward.
    """

    reward_reads_text_only = True

    def __init__(
        self,
        *,
        topk: int = 3,
        retriever: str = INDEXES[0],
        shuffled: bool = True,
        em_weight: float = 1.0,
        f1_weight: float = 0.0,
        format_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if not 1 <= topk <= 20:
            raise ConfigError(f"search-r1: topk is {topk}; it must lie in 1..20")
        self._topk = topk
        self._url = url_of(retriever)
        self._shuffled = shuffled
        self._rewards = Rewards(em_weight, f1_weight, format_weight)
        self._order = random.Random()
        self._golds: tuple[str, ...] = ()
        self._retriever: Retriever | None = None

    @classmethod
    def service_specs(cls, args: Mapping[str, Any]) -> dict[str, ServiceSpec]:
        """The retriever over the bundled passages, unless another one is named."""
        spec = service_of(args.get("retriever", INDEXES[0]))
        return {} if spec is None else {RETRIEVER: spec}

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
        self._golds = golds_of(task["answer"])
        return [Message.user(task["question"])]

    @tool(timeout_s=90, max_output_bytes=4096)
    async def search(self, query: Annotated[str, Meta(min_length=1, max_length=200)]) -> str:
        """Search the corpus for passages, one a line, in no particular order.

        Args:
            query: what to look for
        """
        passages = await self.retrieve(query)
        if self._shuffled:
            # The best passage must be recognized by what it says, not by where it stands.
            self._order.shuffle(passages)
        return "\n".join(map(one_line, passages)) if passages else "no passage was found"

    async def retrieve(self, query: str) -> list[str]:
        """The best passages for `query`, best first."""
        if self._retriever is None:
            self._retriever = Retriever(self._url or self.services[RETRIEVER])
            self._retriever.open()
        return await self._retriever.search(query, self._topk)

    async def score(self, text: str) -> float:
        self.vote = normalize(final_answer(text) or "")
        return self._rewards.of(text, self._golds)

    async def close(self) -> None:
        if self._retriever is not None:
            await self._retriever.close()


def golds_of(answer: object) -> tuple[str, ...]:
    """The right answers of a task. Raises EnvError for what is neither a text nor texts."""
    golds = (answer,) if isinstance(answer, str) else answer
    if isinstance(golds, list | tuple) and golds and all(isinstance(gold, str) for gold in golds):
        return tuple(golds)
    raise EnvError(f"a task has the answer {answer!r:.100}; it must be a text, or a list of texts")


def one_line(contents: str) -> str:
    """A passage as it is shown. Search-R1's corpora put a title in quotes on the first line."""
    title, found, text = contents.partition("\n")
    if not found:
        return contents
    return " ".join(f"({title.strip().strip(chr(34))}) {text}".split())
