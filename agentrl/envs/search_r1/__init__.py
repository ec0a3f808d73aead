"""The default job: a Search-R1-style agent over a bundled corpus of real facts."""

from agentrl.envs.search_r1.env import SearchR1Env
from agentrl.envs.search_r1.questions import SearchR1Source, eval_tasks

__all__ = ["SearchR1Env", "SearchR1Source", "eval_tasks"]
