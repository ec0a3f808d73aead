"""An episode whose format forgets thoughts: its turns count on, and its report has segments."""

from typing import Any

import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.columns import COLUMNS, Column, most_bytes
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import EngineError
from agentrl.tokens import Vocab
from agentrl.tokens.formats.qwen3_stripped import StrippedQwen3Format
from agentrl.types import EpisodeReport, Outcome, StopReason
from tests.unit.played_episodes import ASSIGNMENT, LIMITS, ScriptedClient
from tests.unit.rollout_ground import Policy

pytestmark = pytest.mark.anyio

TURNS = [f"<think>\nabout {word}\n</think>\n\n{word}<|im_end|>" for word in ("one", "two", "three")]


class Asker(Env):
    """Asks on, as a user, until the third turn; what it was told must hold no thought."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[int, str, str]] = []

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(task["question"])]

    async def step(self, turn: AssistantTurn) -> Step:
        self.heard.append((turn.index, turn.text, turn.reasoning))
        assert turn.text == ("one", "two", "three")[turn.index]
        assert turn.reasoning == f"about {turn.text}"
        return Step(messages=[Message.user("on")], reward=1.0, terminated=turn.index == 2)

    async def snapshot(self) -> bytes:
        return b"saved"

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        assert state == b"saved"


async def test_each_turn_stands_in_a_segment_of_its_own(qwen_vocab: Vocab) -> None:
    client = ScriptedClient(*TURNS, vocab=qwen_vocab)
    player = Player(EnvEpisodes(Asker, StrippedQwen3Format(qwen_vocab), LIMITS))
    played = await player.play(ASSIGNMENT, client)
    report = played.report
    assert report.error is None
    assert (report.outcome, report.reward) == (Outcome.DONE, 3.0)
    facts = [(meta.segment, meta.num_turns, meta.reward) for meta in report.trajectories]
    assert facts == [(number, 1, 3.0) for number in range(3)]
    assert len(played.columns) == 3 * len(COLUMNS)
    prompts = [qwen_vocab.decode(prompt) for prompt in client.prompts]
    assert all("about" not in prompt for prompt in prompts)
    assert "two<|im_end|>" in prompts[2]


async def test_turns_of_all_segments_count_against_the_limit(qwen_vocab: Vocab) -> None:
    limits = msgspec.structs.replace(LIMITS, max_turns=2)
    player = Player(EnvEpisodes(Asker, StrippedQwen3Format(qwen_vocab), limits))
    played = await player.play(ASSIGNMENT, ScriptedClient(*TURNS, vocab=qwen_vocab))
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    assert len(played.report.trajectories) == 2


async def test_segments_beyond_what_a_report_can_carry_end_the_episode_with_its_reward(
    qwen_vocab: Vocab,
) -> None:
    async def play(max_bytes: int) -> EpisodeReport:
        limits = msgspec.structs.replace(LIMITS, max_bytes=max_bytes)
        player = Player(EnvEpisodes(Asker, StrippedQwen3Format(qwen_vocab), limits))
        return (await player.play(ASSIGNMENT, ScriptedClient(*TURNS, vocab=qwen_vocab))).report

    sizes = [meta.num_tokens for meta in (await play(LIMITS.max_bytes)).trajectories]
    room = ASSIGNMENT.sampling.max_new_tokens
    for num in (1, 2):
        report = await play(most_bytes(sum(sizes[:num]) + room, ()))
        assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.CONTEXT_LIMIT)
        assert [meta.num_tokens for meta in report.trajectories] == sizes[:num]
        assert (report.reward, report.metrics["truncated"]) == (num, 1.0)


async def test_what_the_engine_says_of_each_token_counts_in_what_a_report_can_carry(
    qwen_vocab: Vocab,
) -> None:
    column = Column("experts", "|u1", (48, 8))
    chat = StrippedQwen3Format(qwen_vocab)
    limits = msgspec.structs.replace(LIMITS, max_bytes=2**16)
    said = Policy(TURNS, chat=chat, column=column)
    played = await Player(EnvEpisodes(Asker, chat, limits)).play(ASSIGNMENT, said)
    report = played.report
    assert (report.outcome, report.stop_reason) == (Outcome.DONE, StopReason.CONTEXT_LIMIT)
    assert 0 < sum(len(bytes(data)) for data in played.columns) <= limits.max_bytes


async def test_a_saved_episode_goes_on_in_its_segment(qwen_vocab: Vocab) -> None:
    player = Player(EnvEpisodes(Asker, StrippedQwen3Format(qwen_vocab), LIMITS))
    whole = await player.play(ASSIGNMENT, ScriptedClient(*TURNS, vocab=qwen_vocab))
    kept: list[bytes] = []

    async def save(state: bytes) -> None:
        kept.append(state)

    lost = ScriptedClient(*TURNS[:2], EngineError("gone"), vocab=qwen_vocab)
    await player.play(ASSIGNMENT, lost, None, save)
    client = ScriptedClient(TURNS[2], vocab=qwen_vocab)
    client.prompts.extend([[], []])  # so that its version is that of a third turn
    played = await player.play(ASSIGNMENT, client, kept[-1])
    assert played.columns == whole.columns
    assert played.report.trajectories == whole.report.trajectories
    assert played.report.metrics["resumed_turns"] == 2.0
