"""Sampled tokens a second of one engine on a CPU, with SGLang's attention and with agentrl's.

The load has the shape of the default job: groups of 8 episodes share a prompt of 40 to 100 tokens,
every episode takes three turns of at most 20 to 56 sampled tokens, with 25 tool tokens after each,
and asks for logprobs. Only the attention differs: both engines sample and group prefills in
agentrl's way. They run side by side and take turns, idle while it is not theirs, so that whatever
else the machine does falls on both; each number is the median of the rounds.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agentrl.serving.client import EngineClient
from agentrl.serving.cpu import ATTENTION_BACKEND
from agentrl.types import SamplingParams
from benchmarks import Row, report
from benchmarks.engines import running_engine, until_ready
from benchmarks.scripted import MODEL, VOCAB_SIZE, client_of

CONCURRENCY = (16, 64, 128)
ROUNDS = 5
GROUP_SIZE, TURNS, TOOL_TOKENS = 8, 3, 25
LIMIT_S = 120.0
VARIANTS: dict[str, dict[str, Any]] = {
    "torch_native": {"attention_backend": "torch_native"},
    ATTENTION_BACKEND: {"attention_backend": ATTENTION_BACKEND},
}


@asynccontextmanager
async def engine(name: str, extra: Mapping[str, Any], folder: Path) -> AsyncIterator[EngineClient]:
    """A client of an engine that is ready."""
    log = folder / f"{name}.log"
    with running_engine(MODEL, log, name=name, extra=extra) as (address, process):
        await until_ready(address, process, LIMIT_S)
        async with client_of(address.url) as client:
            yield client


async def episode(client: EngineClient, key: str, prompt: list[int], seed: int) -> int:
    """Play the turns of one episode; the number of tokens that it sampled."""
    rng, ids, sampled = random.Random(seed), list(prompt), 0
    for _ in range(TURNS):
        params = SamplingParams(max_new_tokens=rng.randint(20, 56))
        reply = await client.generate(ids, params, routing_key=key, priority=seed)
        sampled += len(reply.output_ids)
        ids += [*reply.output_ids, *rng.choices(range(3, VOCAB_SIZE), k=TOOL_TOKENS)]
    return sampled


async def tokens_per_s(client: EngineClient, concurrency: int, seed: int) -> float:
    """Rate over `concurrency` episodes at once and as many again, each started as one ends."""
    rng, total, left = random.Random(seed), 0, 2 * concurrency
    system = random.Random(0).choices(range(3, VOCAB_SIZE), k=30)
    prompts = [
        [*system, *rng.choices(range(3, VOCAB_SIZE), k=rng.randint(10, 70))]
        for _ in range(left // GROUP_SIZE)
    ]

    async def player() -> None:
        nonlocal total, left
        while left > 0:
            left -= 1
            number = left
            prompt = prompts[number // GROUP_SIZE]
            sampled = await episode(client, f"{seed}/{number}", prompt, seed * 1000 + number)
            total += sampled

    begin = time.perf_counter()
    async with anyio.create_task_group() as players:
        for _ in range(concurrency):
            players.start_soon(player)
    return total / (time.perf_counter() - begin)


async def compare(folder: Path) -> dict[int, dict[str, list[float]]]:
    """Tokens a second by concurrency and variant, one number a round, after one for warming up."""
    rates: dict[int, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(engine(name, extra, folder))
            for name, extra in VARIANTS.items()
        }
        for concurrency in CONCURRENCY:
            rates[concurrency] = {name: [] for name in VARIANTS}
            for number in range(ROUNDS + 1):
                for name, client in clients.items():
                    rate = await tokens_per_s(client, concurrency, seed=number)
                    if number:
                        rates[concurrency][name].append(rate)
    return rates


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rates = anyio.run(compare, Path(folder))
    rows = []
    for concurrency, by_variant in rates.items():
        medians = {name: statistics.median(values) for name, values in by_variant.items()}
        for name, median in medians.items():
            against = None if name == "torch_native" else "torch_native"
            rows.append(Row(f"{name} at {concurrency}", round(median, 1), "tokens/s", against))
        speedup = medians[ATTENTION_BACKEND] / medians["torch_native"]
        rows.append(Row(f"speedup at {concurrency}", round(speedup, 2), "x", "torch_native"))
    report("decode", rows, f"{Path(sys.executable).name} -m benchmarks.decode")


if __name__ == "__main__":
    main()
