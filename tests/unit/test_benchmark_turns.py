"""The benchmark of turns: what the engine says in its two tongues, and what becomes of times."""

from pathlib import Path

import anyio
import msgspec
import pytest

from agentrl.tokens.formats.load import load_format
from benchmarks import turns
from benchmarks.scripted import MODEL
from benchmarks.turns import ANSWER, NUM_CALLS, QUERY, TURNS, Engine, Played

pytestmark = pytest.mark.slow


def test_both_tongues_say_the_same() -> None:
    engine, chat = Engine(), load_format("qwen", MODEL)
    for number in range(TURNS):
        ids = msgspec.json.decode(engine.turn(number))["output_ids"]
        turn = chat.parse(ids, tools=["search"])
        message = msgspec.json.decode(turns.chat_answer(number))["choices"][0]["message"]
        if number < NUM_CALLS:
            (call,) = turn.tool_calls
            function = message["tool_calls"][0]["function"]
            assert (call.name, call.arguments.decode()) == (function["name"], function["arguments"])
            assert msgspec.json.decode(call.arguments) == {"query": QUERY}
        else:
            assert turn.text == message["content"] == ANSWER


def test_a_turn_costs_what_its_process_used() -> None:
    ours = [Played(1000, 1.0, 2.0), Played(1000, 0.5, 1.0), Played(1000, 2.0, 8.0)]
    theirs = [Played(1000, 4.0, 5.0), Played(1000, 4.0, 5.0), Played(1000, 4.0, 5.0)]
    rows = {row.metric: row.value for row in turns.rows_of(ours, theirs)}
    assert rows == {
        "turns_per_s_per_core": 1000.0, "cpu_ms_per_turn": 1.0, "vs_pydantic_ai": 4.0,
        "pydantic_ai_cpu_ms_per_turn": 4.0, "wall_turns_per_s": 500.0,
        "pydantic_ai_wall_turns_per_s": 200.0,
    }  # fmt: skip


@pytest.mark.anyio
async def test_a_worker_plays_every_turn_that_is_counted(tmp_path: Path) -> None:
    async with anyio.create_task_group() as group:
        engine = Engine()
        await group.start(engine.serve)
        for _ in range(2):  # an engine that remembers an episode's turns would end it at once
            played = await turns.ours(engine, 3, tmp_path)
        group.cancel_scope.cancel()
    assert played.turns == 3 * TURNS
    assert sum(engine.said.values()) == (turns.WARMUP + 3) * TURNS
