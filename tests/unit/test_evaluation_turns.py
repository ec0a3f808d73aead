"""What an engine is asked for a turn of an evaluation, from the flags to the body of the request.

Evaluator, buffer, worker's player and client are those of a run; the server notes what arrives.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from aiohttp import web

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.cluster.evaluator import Evaluator
from agentrl.cluster.events import RunState
from agentrl.cluster.spec import read_model_facts
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.serving.client import EngineClient
from agentrl.tokens.formats.load import load_format
from agentrl.types import EngineAddress, EpisodeAssignment, Outcome, Task
from tests.unit.buffer_bench import bench
from tests.unit.test_serving_client import reply

pytestmark = pytest.mark.anyio

MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
CHAT = load_format("qwen", MODEL)
ROW = {"input": "How much is one and one?", "label": "2"}


def resolved(rows: Path, flags: str) -> RunConfig:
    rows.write_text('{"input": "q", "label": "a"}\n')
    base = f"--hf-checkpoint {MODEL} --prompt-data {rows} --eval-prompt-data held {rows}"
    base += " --n-samples-per-prompt 4 --rollout-max-response-len 64 --device cpu"
    return parse(f"{base} {flags}".split(), "train_async").config


def assigned(config: RunConfig) -> EpisodeAssignment:
    """The episode of an evaluation of one task, as the buffer gives it to a worker."""
    evaluator = Evaluator(config, {"held": [Task("t", ROW)]}, *cast(Any, (None, RunState(), None)))
    b = bench()
    b.say("driver.1", evaluator._order("held", 0, "alone"))
    (episode,) = b.assigned("w0.1")
    return episode


@asynccontextmanager
async def engine(
    context: int, said: Sequence[int] = ()
) -> AsyncIterator[tuple[EngineClient, list[dict[str, Any]]]]:
    """A client, and the sampling parameters that arrive: each turn says `said`, and ends."""
    asked: list[dict[str, Any]] = []

    async def generate(request: web.Request) -> web.Response:
        asked.append((await request.json())["sampling_params"])
        return reply(
            [*said, CHAT.stop_ids[0]], finish={"type": "stop", "matched": CHAT.stop_ids[0]}
        )

    app = web.Application()
    app.router.add_post("/generate", generate)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with EngineClient(
            url,
            [EngineAddress("e", url)],
            vocab_size=read_model_facts(MODEL, None).vocab_size,
            max_context=context,
            num_permits=1,
            turn_timeout_s=300,
        ) as client:
            yield client, asked
    finally:
        await runner.cleanup()


async def played(config: RunConfig) -> tuple[Outcome, list[dict[str, Any]]]:
    """How the episode ended, and what the engine was asked."""
    settings = WorkerSettings.from_config(config, MODEL, 512, {})
    async with engine(512) as (client, asked):
        with anyio.fail_after(300):
            episode = await Worker(settings).player.play(assigned(config), client)
    return episode.report.outcome, asked


async def test_an_engine_is_asked_for_what_the_flags_of_evaluations_say(tmp_path: Path) -> None:
    flags = "--eval-temperature 0.3 --eval-top-p 0.8 --eval-top-k 40 --eval-max-response-len 99"
    config = resolved(tmp_path / "r.jsonl", f"{flags} --rollout-stop-token-ids 5 7")
    outcome, (asked,) = await played(config)
    assert outcome is Outcome.DONE
    assert asked == {
        "temperature": 0.3,
        "top_p": 0.8,
        "top_k": 40,
        "max_new_tokens": 99,
        "stop_token_ids": [*CHAT.stop_ids, 5, 7],
    }


async def test_a_turn_ends_with_the_first_stop_string_wherever_its_engine_ended_it(
    tmp_path: Path,
) -> None:
    """An engine that looks for none, as one without a tokenizer, is cut to it."""
    said = CHAT.vocab.encode_untrusted("It is 2. And so on")
    first = next(n for n in range(len(said)) if "2." in CHAT.vocab.decode(said[:n]))
    config = resolved(tmp_path / "r.jsonl", "--rollout-stop 2. never")
    async with engine(512, said) as (client, asked):
        settings = WorkerSettings.from_config(config, MODEL, 512, {})
        episode = await Worker(settings).player.play(assigned(config), client)
    assert asked[0]["stop"] == ["2.", "never"]
    (meta,) = episode.report.trajectories
    assert meta.num_sampled == first < len(said)


async def test_an_engine_is_asked_as_in_training_where_they_say_nothing(tmp_path: Path) -> None:
    flags = "--rollout-temperature 0.6 --rollout-stop-token-ids 5"
    _, (asked,) = await played(resolved(tmp_path / "r.jsonl", flags))
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.6, 1.0, -1)
    assert (asked["max_new_tokens"], asked["stop_token_ids"]) == (64, [*CHAT.stop_ids, 5])


async def test_a_turn_of_an_evaluation_stays_within_its_context(tmp_path: Path) -> None:
    context = "--eval-max-context-len 120 --eval-max-response-len 110"
    _, (asked,) = await played(resolved(tmp_path / "r.jsonl", context))
    assert 0 < asked["max_new_tokens"] < 110


async def test_a_prompt_beyond_the_bound_of_evaluations_is_never_sampled(tmp_path: Path) -> None:
    rows = tmp_path / "r.jsonl"
    config = resolved(rows, "--eval-max-prompt-len 8")
    assert await played(config) == (Outcome.FILTERED, [])
    trained = resolved(rows, "--rollout-max-prompt-len 8")
    outcome, asked = await played(trained)
    assert (outcome, len(asked)) == (Outcome.DONE, 1)
