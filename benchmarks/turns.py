"""How many turns an agent worker plays where engine and tool take no time, and another agent loop
beside it.

A worker process of a run plays episodes of three calls of a tool and an answer: prompts become
tokens, turns are sampled, parsed and checked, tools run, reports are delivered to a buffer. Engine
and buffer are scripted and live in the parent. Then a process with the agent loop of Pydantic AI
plays the same episodes against the same engine, through the OpenAI client that it brings: the same
calls, results and answers, no tokens, and nobody to report to.

`cpu_ms_per_turn` is the processor time of the worker process, so it holds everything that the
worker does but nothing of the others; `turns_per_s_per_core` follows from it. `vs_pydantic_ai` is
how many times more processor time a turn takes there. Rounds alternate.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
from aiohttp import web

from agentrl.actors.worker import Worker
from agentrl.envs.env import Env
from agentrl.envs.messages import Message
from agentrl.tokens.formats.load import load_format
from agentrl.tools.tool import tool
from agentrl.types import Outcome
from agentrl.wire.peer import BufferPeer
from agentrl.wire.transport import RouterSocket
from benchmarks import Row, positive, report
from benchmarks.scripted import (
    LIMIT_S,
    MODEL,
    ScriptedBuffer,
    ScriptedEngine,
    client_of,
    reply,
    settings_of,
)
from benchmarks.stand import child

QUESTION = "In which year was the architect of the old town hall of Visby born?"
QUERY = "architect of the old town hall of Visby"
FOUND = "Doc 1: The old town hall was built by the master of the works. " * 4
ANSWER = "1684"
#: Calls of the tool in an episode; one more turn answers.
NUM_CALLS = 3
TURNS = NUM_CALLS + 1
#: Episodes that warm up, and those that are played at once.
WARMUP, AT_ONCE = 32, 64


class SearchEnv(Env):
    """Its search finds the same at once."""

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user(QUESTION)]

    @tool
    async def search(self, query: str) -> str:
        """Search the encyclopedia.

        Args:
            query: What to look for.
        """
        return FOUND

    async def score(self, text: str) -> float:
        return float(text == ANSWER)


class Engine(ScriptedEngine):
    """Speaks SGLang's protocol and that of OpenAI's chat completions, with the same words."""

    def __init__(self) -> None:
        call = msgspec.json.encode({"name": "search", "arguments": {"query": QUERY}}).decode()
        texts = [f"<tool_call>\n{call}\n</tool_call><|im_end|>"] * NUM_CALLS
        vocab = load_format("qwen", MODEL).vocab
        turns = [vocab.encode_trusted(text) for text in [*texts, f"{ANSWER}<|im_end|>"]]
        super().__init__([reply(ids) for ids in turns])
        self._chat = [chat_answer(number) for number in range(TURNS)]

    def add_routes(self, app: web.Application) -> None:
        super().add_routes(app)
        app.router.add_post("/v1/chat/completions", self._complete)

    async def _complete(self, request: web.Request) -> web.Response:
        messages = msgspec.json.decode(await request.read())["messages"]
        number = sum(message["role"] == "assistant" for message in messages)
        return web.Response(body=self._chat[number], content_type="application/json")


def chat_answer(number: int) -> bytes:
    """The turn of that number, from 0, as a chat completion."""
    function = {"name": "search", "arguments": msgspec.json.encode({"query": QUERY}).decode()}
    called = {"id": f"call_{number}", "type": "function", "function": function}
    message = (
        {"role": "assistant", "content": ANSWER}
        if number == NUM_CALLS
        else {"role": "assistant", "content": None, "tool_calls": [called]}
    )
    reason = "stop" if number == NUM_CALLS else "tool_calls"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    facts = {"id": f"chatcmpl-{number}", "object": "chat.completion", "created": 1, "model": "m"}
    return msgspec.json.encode(facts | {"choices": [choice], "usage": usage})


class Played(msgspec.Struct, frozen=True):
    """Turns that were played, processor seconds of their process, and seconds that they took."""

    turns: int
    cpu_s: float
    wall_s: float

    @property
    def cpu_ms(self) -> float:
        """Of one turn."""
        return 1000 * self.cpu_s / self.turns


# ---- ours ----------------------------------------------------------------------------------------


def worker(connection: Connection, buffer: str, engine: str) -> None:
    """Main of a worker process."""
    anyio.run(_worker, connection, buffer, engine)


async def _worker(connection: Connection, buffer: str, engine: str) -> None:
    worker = Worker(settings_of(f"{__name__}:SearchEnv", AT_ONCE))
    peer = BufferPeer(buffer, role="worker", name="worker-0", running=worker.running)
    async with client_of(engine) as client, peer, anyio.create_task_group() as tasks:
        tasks.start_soon(worker.run, peer, client)
        await anyio.to_thread.run_sync(connection.recv_bytes)
        tasks.cancel_scope.cancel()


async def ours(engine: Engine, num: int, folder: Path) -> Played:
    """`num` episodes of a worker, `AT_ONCE` at once."""
    engine.said.clear()
    async with RouterSocket(f"ipc://{folder}/b.sock") as router, anyio.create_task_group() as group:
        buffer = ScriptedBuffer(router)
        group.start_soon(buffer.serve)
        with child(worker, router.address, engine.url) as (process, told):
            await buffer.until(lambda: buffer.is_joined)
            await _assign(buffer, "warm", WARMUP)
            watch = Watch(process.pid)
            await _assign(buffer, "timed", num)
            played = watch.played(num)
            told.send_bytes(b"end")
        group.cancel_scope.cancel()
    done = all(outcome is Outcome.DONE for outcome in buffer.ended.values())
    if not done or engine.said.total() != (WARMUP + num) * TURNS:
        raise RuntimeError(
            f"{engine.said.total()} turns in {WARMUP + num} episodes, which ended as "
            f"{set(buffer.ended.values())}: what was measured is not what is said"
        )
    return played


async def _assign(buffer: ScriptedBuffer, group: str, num: int) -> None:
    """Have `num` episodes played, each next lot when the one before it has ended."""
    for start in range(0, num, AT_ONCE):
        due = len(buffer.ended) + min(AT_ONCE, num - start)
        buffer.assign(f"{group}{start:08d}", min(AT_ONCE, num - start))
        await buffer.until(lambda due=due: len(buffer.ended) == due)  # type: ignore[misc]


class Watch:
    """Processor time of a process, and the time, since now."""

    def __init__(self, pid: int | None) -> None:
        self._process = psutil.Process(pid)
        self._cpu_s, self._at = self._now()

    def _now(self) -> tuple[float, float]:
        times = self._process.cpu_times()
        return times.user + times.system, time.monotonic()

    def played(self, episodes: int) -> Played:
        """What so many episodes took."""
        cpu_s, at = self._now()
        return Played(TURNS * episodes, cpu_s - self._cpu_s, at - self._at)


# ---- theirs --------------------------------------------------------------------------------------


def peer(connection: Connection, engine: str) -> None:
    """Main of a process with Pydantic AI's loop."""
    anyio.run(_peer, connection, engine)


async def _peer(connection: Connection, engine: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{engine}/v1", api_key="none")
    agent = Agent(OpenAIChatModel("m", provider=provider))

    @agent.tool_plain
    async def search(query: str) -> str:
        """Search the encyclopedia.

        Args:
            query: What to look for.
        """
        return FOUND

    async def play() -> None:
        result = await agent.run(QUESTION)
        assert result.output == ANSWER

    while num := int(await anyio.to_thread.run_sync(connection.recv_bytes)):
        watch = Watch(None)
        for start in range(0, num, AT_ONCE):
            async with anyio.create_task_group() as group:
                for _ in range(min(AT_ONCE, num - start)):
                    group.start_soon(play)
        connection.send_bytes(msgspec.json.encode(watch.played(num)))


async def theirs(engine: Engine, num: int) -> Played:
    """`num` episodes of the other loop, `AT_ONCE` at once."""
    with child(peer, engine.url) as (_, told):
        for each in (WARMUP, num):
            told.send_bytes(str(each).encode())
            with anyio.fail_after(LIMIT_S):
                found = await anyio.to_thread.run_sync(told.recv_bytes, abandon_on_cancel=True)
        told.send_bytes(b"0")
    return msgspec.json.decode(found, type=Played)


# ---- both ----------------------------------------------------------------------------------------


async def measure(rounds: int, num: int) -> tuple[list[Played], list[Played]]:
    """Ours and theirs, round by round."""
    found: tuple[list[Played], list[Played]] = ([], [])
    async with anyio.create_task_group() as group:
        engine = Engine()
        await group.start(engine.serve)
        for number in range(1, rounds + 1):
            with tempfile.TemporaryDirectory() as folder:
                found[0].append(await ours(engine, num, Path(folder)))
            found[1].append(await theirs(engine, num))
            said = "ours {:.2f}, theirs {:.2f}".format(*(each[-1].cpu_ms for each in found))
            print(f"round {number}: {said} ms of processor time a turn", flush=True)
        group.cancel_scope.cancel()
    return found


def rows_of(ours: Sequence[Played], theirs: Sequence[Played]) -> list[Row]:
    def middle(value: Callable[[Played], float], of: Sequence[Played]) -> float:
        return statistics.median(map(value, of))

    mine, other = (middle(lambda each: each.cpu_ms, of) for of in (ours, theirs))
    ratio = statistics.median(b.cpu_ms / a.cpu_ms for a, b in zip(ours, theirs, strict=True))
    wall = [middle(lambda each: each.turns / each.wall_s, of) for of in (ours, theirs)]
    unit = "turns/s"
    return [
        Row("turns_per_s_per_core", round(1000 / mine, 1), unit, ">= 400"),
        Row("cpu_ms_per_turn", round(mine, 3), "ms", "< 2"),
        Row("vs_pydantic_ai", round(ratio, 2), "x"),
        Row("pydantic_ai_cpu_ms_per_turn", round(other, 3), "ms"),
        Row("wall_turns_per_s", round(wall[0], 1), unit),
        Row("pydantic_ai_wall_turns_per_s", round(wall[1], 1), unit),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=positive, default=1024, help="episodes of a round")
    parser.add_argument("--rounds", type=positive, default=3, help="times that both are measured")
    given = parser.parse_args()
    report("turns", rows_of(*anyio.run(measure, given.rounds, given.episodes)))


if __name__ == "__main__":
    main()
