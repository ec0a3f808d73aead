"""Natural Questions and HotpotQA, as Search-R1 publishes them, for the Env that ships."""

from typing import Any

from agentrl import Message
from agentrl.envs.search_r1 import SearchR1Env

_HOW = (
    "Answer the question. Look up what you do not know: <search> words </search> asks a search "
    "engine, which answers between <information> and </information>. Search as often as you need, "
    "and end with the answer alone, as in <answer> Beijing </answer>.\n\nQuestion: "
)


class Nq(SearchR1Env):
    """A question of the published rows; each of its `golden_answers` is right."""

    reward_reads_text_only = True

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        row = {"question": f"{_HOW}{task['question']}", "answer": task["golden_answers"]}
        return await super().reset(seed=seed, task=row)
