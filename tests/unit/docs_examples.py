"""Plays the rows of a worked example: `python -m tests.unit.docs_examples FLAGS < turns.json`.

The flags are those of the page's command; of each row of `--prompt-data`, the policy says the turns
that stand at its place on stdin. Prints the reward of each episode.
"""

import json
import sys
from functools import partial
from pathlib import Path

import anyio
import msgspec

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.check.dry_reset import make_env
from agentrl.envs.registry import load_env
from agentrl.envs.rollout import Rollout
from agentrl.types import Task
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, Policy


async def rewards(config: RunConfig, rows: list[str], said: list[list[str]]) -> list[float]:
    cls = load_env(str(config.env))
    make = partial(make_env, cls, config.env_args)
    found = []
    async with Endpoint() as endpoint:
        for row, turns in zip(rows, said, strict=True):
            played = await Player(
                RolloutEpisodes(make, CHAT, LIMITS, endpoint)
                if issubclass(cls, Rollout)
                else EnvEpisodes(make, CHAT, LIMITS)
            ).play(
                msgspec.structs.replace(ASSIGNMENT, task=Task("row", json.loads(row))),
                Policy(turns),
            )
            assert played.report.error is None, played.report.error
            found.append(played.report.reward)
    return found


if __name__ == "__main__":
    flags = parse(sys.argv[1:], "train_async").config
    lines = Path(str(flags.prompt_data)).read_text().splitlines()
    json.dump(anyio.run(rewards, flags, lines, json.load(sys.stdin)), sys.stdout)
