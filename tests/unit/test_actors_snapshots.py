"""An episode that was saved between two turns goes on there, and nothing of it is sampled twice."""

import json
from typing import Any

import anyio
import msgspec
import pytest

from agentrl.actors.episode import EnvEpisodes
from agentrl.actors.player import Player
from agentrl.actors.report import PlayedEpisode
from agentrl.actors.snapshots import EpisodeSnapshot
from agentrl.envs.env import Env
from agentrl.envs.messages import AssistantTurn, Message, Step
from agentrl.errors import ConfigError, EngineError, InfrastructureError, TokenError
from agentrl.tokens.stream import TokenStream
from agentrl.types import Outcome, StopReason
from tests.unit.played_episodes import ASSIGNMENT, CHAT, LIMITS, ScriptedClient

pytestmark = pytest.mark.anyio

LOST = EngineError("engine-0 is gone")


class Counter(Env):
    """Three turns; the reward of each is the number of turns so far."""

    resets = 0

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        type(self).resets += 1
        return [Message.user(task["question"])]

    async def step(self, turn: AssistantTurn) -> Step:
        self.turns += 1
        done = self.turns == 3
        heard = Message.user(f"heard {turn.text}")
        return Step(
            messages=[heard], reward=float(self.turns), terminated=done, metrics={"heard": 1.0}
        )

    async def snapshot(self) -> bytes:
        return json.dumps(self.turns).encode()

    async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
        assert (seed, task) == (ASSIGNMENT.seed, ASSIGNMENT.task.row)
        self.turns = json.loads(state)


async def play(
    env: type[Env], client: ScriptedClient, saved: bytes | None = None
) -> tuple[PlayedEpisode, list[bytes]]:
    kept: list[bytes] = []

    async def save(state: bytes) -> None:
        kept.append(state)

    player = Player(EnvEpisodes(env, CHAT, LIMITS))
    return await player.play(ASSIGNMENT, client, saved, save), kept


def without_time(saved: bytes) -> EpisodeSnapshot:
    return msgspec.structs.replace(EpisodeSnapshot.decode(saved), played_s=0.0)


def texts(*words: str) -> list[str]:
    return [f"{word}<|im_end|>" for word in words]


async def test_an_episode_that_goes_on_equals_one_that_was_never_cut() -> None:
    whole, kept = await play(Counter, ScriptedClient(*texts("one", "two", "three")))
    assert len(kept) == 2
    cut, saved = await play(Counter, ScriptedClient(*texts("one", "two"), LOST))
    assert cut.report.outcome is Outcome.ENGINE_ERROR
    assert [without_time(state) for state in saved] == [without_time(state) for state in kept]
    before = Counter.resets
    client = ScriptedClient(*texts("three"))
    client.prompts.extend([[], []])  # so that its version is that of a third turn
    played, later = await play(Counter, client, saved[-1])
    assert (Counter.resets, later) == (before, [])
    assert played.columns == whole.columns
    assert played.report.trajectories == whole.report.trajectories
    assert played.report.reward == whole.report.reward == 6.0
    assert played.report.metrics == whole.report.metrics | {"resumed_turns": 2.0}
    assert played.report.stop_reason is StopReason.TERMINATED


async def test_budgets_go_on_too() -> None:
    _, kept = await play(Counter, ScriptedClient(*texts("one", "two", "three")))
    limits = msgspec.structs.replace(LIMITS, max_turns=2)
    player = Player(EnvEpisodes(Counter, CHAT, limits))
    played = await player.play(ASSIGNMENT, ScriptedClient(*texts("two")), kept[0])
    assert played.report.stop_reason is StopReason.TURN_LIMIT
    spent = msgspec.structs.replace(EpisodeSnapshot.decode(kept[0]), calls_left=0)
    call = '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call><|im_end|>'
    player = Player(EnvEpisodes(Counter, CHAT, msgspec.structs.replace(LIMITS, max_tool_calls=9)))
    played = await player.play(ASSIGNMENT, ScriptedClient(call), spent.encode())
    assert played.report.stop_reason is StopReason.TOOL_CALL_LIMIT


async def test_time_goes_on_too() -> None:
    _, kept = await play(Counter, ScriptedClient(*texts("one", "two", "three")))
    late = msgspec.structs.replace(
        EpisodeSnapshot.decode(kept[1]), played_s=LIMITS.episode_timeout_s - 0.05
    )

    class Slow(ScriptedClient):
        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            await anyio.sleep_forever()

    player = Player(EnvEpisodes(Counter, CHAT, LIMITS))
    played = await player.play(ASSIGNMENT, Slow(), late.encode())
    assert played.report.stop_reason is StopReason.TIME_LIMIT
    assert played.report.wall_s >= LIMITS.episode_timeout_s


async def test_an_env_that_cannot_be_saved_is_not_asked() -> None:
    class Plain(Counter):
        snapshot, restore = Env.snapshot, Env.restore

    played, kept = await play(Plain, ScriptedClient(*texts("one", "two", "three")))
    assert (played.report.outcome, kept) == (Outcome.DONE, [])


@pytest.mark.parametrize("saved", [b"", b"\xc1", msgspec.msgpack.encode({"env": b"1"})])
async def test_what_cannot_be_read_is_an_env_error_so_that_it_begins_anew(saved: bytes) -> None:
    played, _ = await play(Counter, ScriptedClient(), saved)
    assert played.report.outcome is Outcome.ENV_ERROR
    assert "a saved episode cannot be read" in str(played.report.error)


async def test_what_an_env_raises_when_it_is_restored_or_saved_is_its_error() -> None:
    class Broken(Counter):
        async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
            raise ValueError("an old layout")

    class Careless(Counter):
        async def snapshot(self) -> bytes:
            return self.turns  # type: ignore[return-value]

    _, kept = await play(Counter, ScriptedClient(*texts("one"), LOST))
    played, _ = await play(Broken, ScriptedClient(), kept[0])
    assert (played.report.outcome, "an old layout" in str(played.report.error)) == (
        Outcome.ENV_ERROR, True,
    )  # fmt: skip

    class Gone(Counter):
        async def restore(self, state: bytes, *, seed: int, task: dict[str, Any]) -> None:
            raise InfrastructureError("its sandbox is gone")

    played, _ = await play(Gone, ScriptedClient(), kept[0])
    assert played.report.outcome is Outcome.ENV_ERROR
    played, _ = await play(Careless, ScriptedClient(*texts("one")))
    assert "Careless.snapshot returned int, not bytes" in str(played.report.error)


def test_one_of_the_two_methods_is_not_enough() -> None:
    with pytest.raises(ConfigError, match="Half defines snapshot without restore"):

        class Half(Env):
            async def snapshot(self) -> bytes:
                return b""

    assert not Env.can_be_saved
    assert Counter.can_be_saved


async def test_a_stream_takes_only_what_a_stream_has_given() -> None:
    _, kept = await play(Counter, ScriptedClient(*texts("one"), LOST))
    columns = EpisodeSnapshot.decode(kept[0]).columns

    def fresh() -> TokenStream:
        return TokenStream(CHAT.vocab, openers=[CHAT.assistant_opener])

    stream = fresh()
    stream.restore(columns)
    assert [column.tobytes() for column in stream.columns()] == columns
    assert stream.num_turns == 1
    with pytest.raises(TokenError, match="of 0 tokens"):
        fresh().restore(columns[:4])
    with pytest.raises(TokenError, match=r"stream of \d+ tokens"):
        stream.restore(columns)
    with pytest.raises(TokenError, match="whole number"):
        fresh().restore([columns[0][:-1], *columns[1:]])
    for place in range(len(columns)):
        damaged = [bytes(column) for column in columns]
        damaged[place] = b"\x03\xf0\xff\xff" * (len(damaged[place]) // 4)
        with pytest.raises(TokenError):
            fresh().restore(damaged)
