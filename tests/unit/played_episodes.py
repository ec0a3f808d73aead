"""Episodes of an Env with one tool, played against an engine that samples given texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import agentrl.envs.search_r1
from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.envs.env import Env, EnvContext
from agentrl.envs.messages import Message
from agentrl.tokens.formats.load import load_format
from agentrl.tokens.vocab import Vocab
from agentrl.tools.tool import tool
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    SamplingParams,
    Task,
    TurnClient,
)

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
CHAT = load_format("qwen", MODEL)
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call><|im_end|>'
LIMITS = Limits(
    max_context=512, max_prompt=400, max_turns=4, max_tool_calls=None, episode_timeout_s=300.0
)
ASSIGNMENT = EpisodeAssignment(
    id=EpisodeId("00000001", 0),
    mint=1,
    seed=7,
    task=Task("t", {"question": "Double 21."}),
    sampling=SamplingParams(max_new_tokens=64),
)


class ScriptedClient(TurnClient):
    """A TurnClient that samples given texts, one version later at each turn."""

    def __init__(
        self, *turns: str | Exception, finish: str = "stop", vocab: Vocab = CHAT.vocab
    ) -> None:
        self.vocab = vocab
        self.turns = list(turns)
        self.finish = finish
        self.prompts: list[list[int]] = []
        self.sampling: list[SamplingParams] = []

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        self.prompts.append(list(input_ids))
        self.sampling.append(sampling)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        ids = self.vocab.encode_trusted(turn)[: sampling.max_new_tokens]
        version = len(self.prompts)
        return Generation(
            output_ids=ids,
            logprobs=[-0.5] * len(ids),
            versions=[version] * len(ids),
            finish_reason=self.finish,
        )


class Doubler(Env):
    """Asks for 42; the answer must be the model's own."""

    closed = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    @tool
    async def double(self, number: int) -> int:
        """Double a number.

        Args:
            number: what to double
        """
        return 2 * number

    async def score(self, text: str) -> float:
        return float(text.strip() == "42")

    async def close(self) -> None:
        type(self).closed += 1


async def play(
    env: type[Env],
    client: ScriptedClient,
    limits: Limits = LIMITS,
    question: str = "Double 21.",
    context: EnvContext = EnvContext(),  # noqa: B008 - frozen
) -> PlayedEpisode:
    assignment = msgspec.structs.replace(ASSIGNMENT, task=Task("t", {"question": question}))
    return await Player(EnvEpisodes(env, CHAT, limits, context)).play(assignment, client)
