"""What a second engine adds to the pause of a push, in pairs: real engines, and one sender.

    pair k:  push to one engine | push to both      (the order changes from pair to pair)

Engines are idle and the weights are many buckets, so that the bytes count and no turn is waited
for. Each push has a sender of its own, with a first push that is not counted. Pairs go over a
collective (TCP on a CPU host), and, as rows that end in `_memory`, through the memory that
`--colocate` shares.

`memcpy_floor` is how long this machine takes to copy the bytes of a push once for each engine, from
memory to memory in one thread. A push copies them into a bucket, once for all engines. TCP then
copies them three times for each: into the kernel, out of it, and into the parameters. Shared memory
is written once for all, and each engine copies from it to its parameters.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from agentrl.models.registry import families
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress
from benchmarks import Row
from benchmarks.engines import running_engine, until_ready

__all__ = ["pair_rows", "rows_of_pairs"]

#: 0.4 GB of weights in float32.
SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
BUCKET_BYTES = 1 << 26
START_S = 600.0
Pauses = dict[int, list[float]]
#: How buckets reach the engines, by the end of the names of its rows, and whether through memory.
WAYS = {"": False, "_memory": True}


def rows_of_pairs(pauses: Pauses, floors: Pauses, way: str = "") -> list[Row]:
    """Rows of the pauses of paired pushes, and of the copies beside them, by number of engines, in
    seconds."""
    rows = []
    for engines in (1, 2):
        pause, floor = (statistics.median(each[engines]) for each in (pauses, floors))
        rows += [
            Row(f"paired_pause_p50_ms_{engines}{way}", round(1000 * pause, 1), "ms"),
            Row(f"memcpy_floor_p50_ms_{engines}{way}", round(1000 * floor, 1), "ms"),
            Row(f"pause_over_floor_{engines}{way}", round(pause / floor, 2), "x", "<= 1.5"),
        ]
    adds = statistics.median(two / one for one, two in zip(pauses[1], pauses[2], strict=True)) - 1
    return [*rows, Row(f"second_engine_adds{way}", round(adds, 4), "share", "<= 0.1")]


def pair_rows(pairs: int) -> list[Row]:
    """Measure that many pairs of pushes."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE), dtype=torch.float32)
        model.save_pretrained(folder / "model")
        running = [
            stack.enter_context(running_engine(folder / "model", folder / f"{name}.log", name=name))
            for name in ("one", "two")
        ]
        for engine, process in running:
            anyio.run(until_ready, engine, process, START_S)
        engines = [engine for engine, _ in running]
        weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
        versions = iter(range(1, 10**6))
        rows = []
        for way, shares_memory in WAYS.items():
            pauses, floors = Pauses({1: [], 2: []}), Pauses({1: [], 2: []})
            for pair in range(pairs):
                for number in (1, 2) if pair % 2 else (2, 1):
                    to = engines[:number]
                    pause = _pause(to, weights, versions, shares_memory=shares_memory)
                    pauses[number].append(pause)
                    floors[number].append(_copied(weights, number))
            rows += rows_of_pairs(pauses, floors, way)
    return rows


def _pause(
    engines: list[EngineAddress],
    weights: dict[str, torch.Tensor],
    versions: Iterator[int],
    *,
    shares_memory: bool,
) -> float:
    """Seconds that these engines stand still in a push of the weights."""
    with FleetWeightSink(
        engines,
        bucket_bytes=BUCKET_BYTES,
        timeout_s=120,
        fleet_size=len(engines),
        shares_memory=shares_memory,
        fused=families()["qwen3"].engine_fused,
        on_lost=print,
    ) as sink:
        sink.publish(next(versions), weights.items())
        return sink.publish(next(versions), weights.items()).pause_s


def _copied(weights: dict[str, torch.Tensor], times: int) -> float:
    """Seconds of that many copies of all weights into memory that is there."""
    places = [torch.empty_like(tensor).copy_(tensor) for tensor in weights.values()]
    began = time.perf_counter()
    for _ in range(times):
        for place, tensor in zip(places, weights.values(), strict=True):
            place.copy_(tensor)
    return time.perf_counter() - began
