"""Rollout functions in slime's signature, played for many episodes against a scripted policy."""

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from agentrl.actors.batches.batch import BatchGround
from agentrl.actors.batches.desk import Desk
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.actors.writing import Writers
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.generate import GenerateEnv
from agentrl.envs.slime_stand_in.rollout_outputs import RolloutFnTrainOutput
from agentrl.types import EpisodeId, Task, TurnClient
from tests.unit.generate_asking import asked
from tests.unit.generate_ground import CONFIG
from tests.unit.rollout_ground import ASSIGNMENT, CHAT, LIMITS

SIZE = 2
#: Seconds without a new episode after which fewer are played than could be.
PATIENCE_S = 1.0
QUESTIONS = ("What is the capital of France?", "And that of Spain?", "Of Italy?")


async def answered(args: Any, group: list[Any]) -> list[Any]:
    """Each sample of a group, asked once, with the reward 1 for a Paris."""
    async with anyio.create_task_group() as tasks:
        for sample in group:
            tasks.start_soon(asked, args, sample, dict(args.sampling_params))
    for sample in group:
        sample.reward = float("Paris" in sample.response)
    return group


async def generate_rollout(
    args: Any, rollout_id: int, data_source: Any, evaluation: bool = False
) -> Any:
    """All groups of a call."""
    groups = data_source.get_samples(args.rollout_batch_size)
    return RolloutFnTrainOutput([await answered(args, group) for group in groups])


def assigned(num_groups: int, size: int = SIZE, first: int = 0) -> list[Any]:
    """Whole groups, each of one of the questions."""
    return [
        msgspec.structs.replace(
            ASSIGNMENT,
            id=EpisodeId(f"{group + 1:08x}", index),
            mint=group + 1,
            seed=10 * group + index,
            task=Task(f"t{group}", {"input": QUESTIONS[group % 3], "label": "Paris"}),
        )
        for group in range(first, first + num_groups)
        for index in range(size)
    ]


class Batched:
    """A worker's player of such a function."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        batch_size: int = 2,
        limits: Limits = LIMITS,
        config: RunConfig = CONFIG,
        buffer_filter: Any = None,
        sees_groups: bool = False,
        **reward: Any,
    ) -> None:
        self.endpoint = Endpoint()
        config = msgspec.structs.replace(
            config, rollout_batch_size=batch_size, n_samples_per_prompt=SIZE
        )
        context = EnvContext(run_flags=config)

        def make() -> GenerateEnv:
            env = GenerateEnv(rollout_function=f"{__name__}:generate_rollout", **reward)
            Env.bind(env, context)
            return env

        self.desk = Desk(
            BatchGround(
                function=function,
                chat=CHAT,
                limits=limits,
                endpoint=self.endpoint,
                writers=Writers(),
                batch_size=batch_size,
                group_size=SIZE,
                buffer_filter=buffer_filter,
                sees_groups=sees_groups,
            ),
            PATIENCE_S,
        )
        episodes = RolloutEpisodes(make, CHAT, limits, self.endpoint, context, desk=self.desk)
        self.player = Player(episodes)

    async def play(self, assignments: Sequence[Any], client: TurnClient) -> list[PlayedEpisode]:
        """The reports, in the order of the assignments."""
        found: dict[int, PlayedEpisode] = {}

        async def one(place: int, assignment: Any) -> None:
            found[place] = await self.player.play(assignment, client)

        async with self.endpoint, anyio.create_task_group() as group:
            for place, assignment in enumerate(assignments):
                group.start_soon(one, place, assignment)
        return [found[place] for place in range(len(assignments))]
