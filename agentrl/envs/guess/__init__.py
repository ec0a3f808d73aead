"""A game of several turns without any tool: find a number by the hints."""

from agentrl.envs.guess.env import GuessEnv
from agentrl.envs.guess.games import Game, GuessSource, eval_tasks

__all__ = ["Game", "GuessEnv", "GuessSource", "eval_tasks"]
