"""Functions in slime's signature played against a scripted policy."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.generate import GenerateEnv
from agentrl.tokens.formats.base import ChatFormat
from agentrl.types import Task
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS, MODEL, Policy

SEARCH = Path(__file__).with_name("generate_files") / "search.py"
TASK = Task("t", {"input": "What is the capital of France?", "label": "Paris"})
TURNS = (
    "I look it up. <search>France</search> and more",
    "So <answer>Paris</answer><|im_end|>",
)
CONFIG = msgspec.structs.replace(RunConfig(), hf_checkpoint=str(MODEL), apply_chat_template=True)

Function = Callable[..., Awaitable[Any]]


def env_of(
    function: Function | Path, config: RunConfig = CONFIG, **reward: Any
) -> Callable[[], GenerateEnv]:
    """What makes the Env of a function, of a file or of this process."""

    def make() -> GenerateEnv:
        place = f"{function}:generate" if isinstance(function, Path) else f"{SEARCH}:generate"
        env = GenerateEnv(function=place, **reward)
        if not isinstance(function, Path):
            env.function = function
        Env.bind(env, EnvContext(run_flags=config))
        return env

    return make


async def play_function(
    function: Function | Path,
    policy: Policy,
    *,
    limits: Limits = LIMITS,
    config: RunConfig = CONFIG,
    assignment: dict[str, Any] | None = None,
    chat: ChatFormat = CHAT,
    **reward: Any,
) -> PlayedEpisode:
    """One episode, from its assignment to its report."""
    assigned = msgspec.structs.replace(ASSIGNMENT, **({"task": TASK} | (assignment or {})))
    make = env_of(function, config, **reward)
    make().prepare()  # as a worker does
    async with Endpoint() as endpoint:
        context = EnvContext(run_flags=config)
        player = Player(RolloutEpisodes(make, chat, limits, endpoint, context))
        return await player.play(assigned, policy)
