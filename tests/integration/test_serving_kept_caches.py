"""Real engines that keep their caches over pushes (`--kv-across-pushes keep`): what they sample,
and the log-probabilities that they tell, are those of the weights and the cache that were there."""

from collections.abc import Iterator
from functools import partial

import anyio
import pytest
import torch
from anyio import to_thread
from transformers import DynamicCache

from agentrl.models.registry import families
from agentrl.serving.client import EngineClient
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import Generation, SamplingParams
from tests.engines import CALL_S, Stack, client_to, make_model, open_stack, weights_of

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(3600)]

#: Weights of each version, by the seed that makes them.
SEEDS = {1: 5, 2: 6, 3: 7, 4: 8}
#: Float32 sums in another order.
APART = 1e-3


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with open_stack(tmp_path_factory.mktemp("serving")) as opened:
        yield opened


@pytest.fixture
def sink(stack: Stack) -> Iterator[FleetWeightSink]:
    with FleetWeightSink(
        stack.engines,
        bucket_bytes=50_000,
        timeout_s=CALL_S,
        fleet_size=16,
        fused=families()["qwen3"].engine_fused,
        on_lost=lambda engine: pytest.fail(f"{engine.name} is lost"),
        key=stack.key,
        keeps_cache=True,
    ) as opened:
        yield opened


async def push(sink: FleetWeightSink, version: int, client: EngineClient) -> None:
    weights = weights_of(SEEDS[version])
    await to_thread.run_sync(partial(sink.publish, version, weights.items()))
    client.new_weights(version)


def over_one_cache(turn: Generation, prompt: list[int]) -> list[float]:
    """Log-probabilities of a turn by transformers: weights change where the turn says, and what is
    in the cache stays."""
    model, cache = make_model(SEEDS[turn.versions[0]]), DynamicCache()
    fed, scores = prompt, list[float]()
    begin = 0
    while begin < len(turn.versions):
        version = turn.versions[begin]
        end = begin + turn.versions[begin:].count(version)
        model.load_state_dict(weights_of(SEEDS[version]), strict=False)
        span = turn.output_ids[begin:end]
        with torch.no_grad():
            logits = model(torch.tensor([fed + span[:-1]]), past_key_values=cache).logits[0]
        found = logits[-len(span) :].log_softmax(-1).gather(1, torch.tensor(span)[:, None])
        scores += found[:, 0].tolist()
        fed, begin = span[-1:], end
    return scores


def exact(version: int, prompt: list[int], output: list[int]) -> list[float]:
    turn = Generation(output, [], [version] * len(output), "length")
    return over_one_cache(turn, prompt)


async def test_turns_go_on_over_their_caches_and_tell_what_sampled_them(
    stack: Stack, sink: FleetWeightSink
) -> None:
    turns: dict[int, Generation] = {}

    async def turn(number: int) -> None:
        sampling = SamplingParams(max_new_tokens=500, temperature=1.0)
        turns[number] = await client.generate(
            prompts[number], sampling, routing_key=f"episode-{number}", priority=0
        )

    prompts = [[30 + number, 7, *range(20 * number)] for number in range(4)]
    async with client_to(stack, cache_versions=1) as client:
        await push(sink, 1, client)
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(turn, number)
            for version in (2, 3):
                await anyio.sleep(0.5)
                await push(sink, version, client)
        crossed = {n: turn for n, turn in turns.items() if len(set(turn.versions)) > 1}
        assert crossed
        assert all(turn.num_retractions == 0 for turn in turns.values())
        for number, played in turns.items():
            assert played.versions == sorted(played.versions)
            expected = over_one_cache(played, prompts[number])
            assert played.logprobs == pytest.approx(expected, abs=APART)
        number, first = next(iter(crossed.items()))
        computed_anew = exact(3, prompts[number], first.output_ids)[-1]
        assert abs(first.logprobs[-1] - computed_anew) > APART, "nothing was old in that cache"
        prompt = [*prompts[number], *first.output_ids]
        second = await client.generate(
            prompt, SamplingParams(max_new_tokens=8), routing_key=f"episode-{number}", priority=0
        )
    assert second.versions == [3] * 8
    assert second.logprobs == pytest.approx(exact(3, prompt, second.output_ids), abs=APART)


async def test_a_part_of_the_cache_that_leads_the_weights_would_be_read_as_new(
    stack: Stack, sink: FleetWeightSink
) -> None:
    """Why workers hear of a version only when all engines serve it."""
    prompt = list(range(100, 180))
    async with client_to(stack, cache_versions=1) as client:
        ask = partial(
            client.generate,
            prompt,
            SamplingParams(max_new_tokens=4, temperature=1.0),
            routing_key="a",
            priority=0,
        )
        await push(sink, 1, client)
        client.new_weights(4)  # it leads
        await ask()
        for version in (2, 4):
            await push(sink, version, client)
        turn = await ask()
        assert turn.versions == [4] * 4
        assert turn.logprobs != pytest.approx(exact(4, prompt, turn.output_ids), abs=APART)
