"""Rollouts played against a scripted policy, and what must hold of their tokens."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np

import agentrl.envs.search_r1
from agentrl import rollout
from agentrl.actors.endpoint.server import Endpoint
from agentrl.actors.limits import Limits
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.rollouts import RolloutEpisodes
from agentrl.columns import Column, dealt
from agentrl.envs.registry import MADE_ENV
from agentrl.envs.rollout import Chat, Rollout
from agentrl.tokens.formats.base import ChatFormat
from agentrl.tokens.formats.load import load_format
from agentrl.types import (
    EpisodeAssignment,
    EpisodeId,
    Generation,
    SamplingParams,
    SpanKind,
    Task,
    TurnClient,
)
from agentrl.wire.arrays import as_arrays

MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"
CHAT = load_format("qwen", MODEL)
LIMITS = Limits(
    max_context=4000, max_prompt=3000, max_turns=64, max_tool_calls=None, episode_timeout_s=60.0
)
ASSIGNMENT = EpisodeAssignment(
    id=EpisodeId("00000001", 0),
    mint=1,
    seed=7,
    task=Task("t", {"question": "Double 21."}),
    sampling=SamplingParams(max_new_tokens=400),
)
HELLO = [{"role": "user", "content": "hello"}]
DOUBLE: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Double a number.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "integer"}},
            "required": ["number"],
        },
    },
}


def call_of(name: str, arguments: str) -> str:
    """A turn that makes one call."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call><|im_end|>'


CALL = call_of("double", '{"number": 21}')


class Policy(TurnClient):
    """A TurnClient that says what `say` makes of the text of a prompt, one version later at each
    turn. `asked`: every prompt with what was sampled after it, in the order of the answers.
    `column`: what it says of each token beside."""

    def __init__(
        self,
        say: Callable[[str], str | Exception] | Sequence[str | Exception],
        *,
        chat: ChatFormat = CHAT,
        finish: str = "stop",
        column: Column | None = None,
    ) -> None:
        script = None if callable(say) else iter(say)
        self._say = say if callable(say) else lambda prompt: next(script)  # type: ignore[arg-type]
        self._chat = chat
        self._finish = finish
        self._column = column
        self.asked: list[tuple[list[int], list[int]]] = []
        self.prompts: list[str] = []
        self.sampling: list[SamplingParams] = []
        #: Turns, by number, that wait for an event before they are answered.
        self.held: dict[int, anyio.Event] = {}

    async def generate(
        self,
        input_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        routing_key: str,
        priority: int,
    ) -> Generation:
        text = self._chat.vocab.decode(input_ids)
        self.prompts.append(text)
        self.sampling.append(sampling)
        said = self._say(text)
        held = self.held.get(len(self.prompts) - 1)
        await (anyio.lowlevel.checkpoint() if held is None else held.wait())
        if isinstance(said, Exception):
            raise said
        ids = self._sampled(said, sampling)
        version = len(self.asked)
        self.asked.append((list(input_ids), ids))
        columns = {c: b"\1" * len(ids) * c.token_bytes for c in (self._column,) if c is not None}
        return Generation(
            ids, [-0.5] * len(ids), [version] * len(ids), self._finish, columns=columns
        )

    def _sampled(self, said: str, sampling: SamplingParams) -> list[int]:
        """As an engine would: up to the first stop id, and no more than there may be."""
        ids = self._chat.vocab.encode_trusted(said)[: sampling.max_new_tokens]
        stops = [at for at, id_ in enumerate(ids) if id_ in sampling.stop_token_ids]
        return ids[: stops[0] + 1] if stops else ids


def made_of(solve: Callable[..., Awaitable[Any]]) -> type[Rollout]:
    """The Rollout of a function."""
    name = f"test/{solve.__qualname__.replace('<locals>.', '').lower()}"
    made: type[Rollout] = vars(rollout(name)(solve))[MADE_ENV]
    return made


async def play(
    solve: Callable[[dict[str, Any], Chat], Awaitable[Any]] | type[Rollout],
    policy: Policy,
    *,
    chat: ChatFormat = CHAT,
    limits: Limits = LIMITS,
    **assignment: Any,
) -> PlayedEpisode:
    """One episode, from its assignment to its report."""
    make = solve if isinstance(solve, type) else made_of(solve)
    assigned = msgspec.structs.replace(ASSIGNMENT, **assignment)
    async with Endpoint() as endpoint:
        return await Player(RolloutEpisodes(make, chat, limits, endpoint)).play(assigned, policy)


def columns_of(played: PlayedEpisode) -> list[dict[str, np.ndarray[Any, Any]]]:
    """The columns of each trajectory."""
    metas = played.report.trajectories
    each = dealt(played.report.layouts, played.columns)
    return [as_arrays(m.layout, m.num_tokens, own) for m, own in zip(metas, each, strict=True)]


def trained(played: PlayedEpisode) -> list[tuple[list[int], list[int]]]:
    """Every run of SAMPLED tokens with all that stands before it."""
    found = []
    for columns in columns_of(played):
        sampled = columns["kinds"] == SpanKind.SAMPLED
        edges = np.flatnonzero(np.diff(np.concatenate([[0], sampled, [0]])))
        tokens = columns["tokens"].tolist()
        found += [
            (tokens[:start], tokens[start:stop]) for start, stop in edges.reshape(-1, 2).tolist()
        ]
    return found


def check_tokens(played: PlayedEpisode, policy: Policy, chat: ChatFormat = CHAT) -> None:
    """What was sampled is trained exactly once, after exactly what the engine was given; and no
    untrusted token is a control id."""
    assert played.report.error is None

    def count(pairs: Sequence[tuple[list[int], list[int]]]) -> Counter[tuple[tuple[int, ...], ...]]:
        return Counter((tuple(prompt), tuple(ids)) for prompt, ids in pairs)

    assert count(trained(played)) == count(policy.asked)
    for columns, meta in zip(columns_of(played), played.report.trajectories, strict=True):
        untrusted = columns["tokens"][columns["kinds"] == SpanKind.UNTRUSTED]
        assert not chat.vocab.control_ids & set(untrusted.tolist())
        sampled = columns["kinds"] == SpanKind.SAMPLED
        assert meta.num_sampled == sampled.sum()
        assert meta.reward == played.report.reward
        assert (columns["versions"][~sampled] == -1).all()
