"""The default job's Env with a quarter of its held-out questions, for runs that score them often.

`--env benchmarks/few_questions.py:FewQuestionsEnv`
"""

from collections.abc import Mapping
from typing import Any

from agentrl.envs.search_r1.env import SearchR1Env
from agentrl.types import Task

__all__ = ["NUM_QUESTIONS", "FewQuestionsEnv"]

NUM_QUESTIONS = 160


class FewQuestionsEnv(SearchR1Env):
    """`search-r1-local`; evaluated on the first held-out questions, whose order is random."""

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> dict[str, list[Task]]:
        """Questions about entities that no training question names."""
        found = super().eval_tasks(args)
        return {name: tasks[:NUM_QUESTIONS] for name, tasks in found.items()}
