"""Turns beside those of a run, on its engines, to see what a weight push costs a turn.

A probe asks for one turn after the other of the run's router, as a worker does, and notes how long
each took and how many versions sampled it. A turn of two versions has been through a push. What
that cost is the time it took beyond the median of the `NEIGHBOURS` turns of one version whose
lengths are nearest to its own: turns differ in length, and longer ones meet more pushes.
"""

import itertools
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from agentrl.cluster.spec import RunSpec, read_spec
from agentrl.config.record import read_record
from agentrl.errors import EngineError
from agentrl.serving.client import EngineClient
from agentrl.serving.key import read_key
from agentrl.types import SamplingParams

__all__ = ["NEIGHBOURS", "Turn", "added_seconds", "probe"]

#: Probes of each engine, and tokens of their prompts and turns.
NUM_PROBES, PROMPT_TOKENS, TURN_TOKENS = 2, 60, 40
NEIGHBOURS = 9
#: Seconds between two looks for the run, and those that a turn may take.
LOOK_S, TURN_S = 0.5, 120.0


class Turn(msgspec.Struct, frozen=True):
    """`began`: wall time; `versions`: how many sets of weights sampled it."""

    began: float
    seconds: float
    num_tokens: int
    versions: int


def added_seconds(turns: Sequence[Turn]) -> list[float]:
    """For each turn that met a push, how much longer it took than turns of its length that met
    none. Raises ValueError when no turn met one, or fewer than `NEIGHBOURS` met none."""
    undisturbed = [turn for turn in turns if turn.versions == 1]
    disturbed = [turn for turn in turns if turn.versions > 1]
    if not disturbed or len(undisturbed) < NEIGHBOURS:
        raise ValueError(
            f"{len(disturbed)} turns met a push and {len(undisturbed)} met none: at least 1 and"
            f" {NEIGHBOURS} are needed, measure more iterations"
        )
    return [turn.seconds - _usual(undisturbed, turn.num_tokens) for turn in disturbed]


def _usual(turns: Sequence[Turn], num_tokens: int) -> float:
    nearest = sorted(turns, key=lambda turn: abs(turn.num_tokens - num_tokens))[:NEIGHBOURS]
    return statistics.median(turn.seconds for turn in nearest)


async def probe(run: Path, turns: list[Turn]) -> None:
    """Add turns on the engines of the run at `run` to `turns`, from its start until cancelled."""
    spec = await _spec_of(run)
    num_probes = NUM_PROBES * len(spec.engines)
    client = EngineClient(
        spec.router_url or "",
        spec.engines,
        vocab_size=spec.model.vocab_size,
        max_context=spec.model.max_context,
        num_permits=num_probes,
        turn_timeout_s=TURN_S,
        key=read_key(spec.engine_key_file),
    )
    async with client, anyio.create_task_group() as probes:
        for index in range(num_probes):
            probes.start_soon(_ask, client, index, spec.model.vocab_size, turns)


async def _spec_of(run: Path) -> RunSpec:
    """What the processes of the run are told, once it is written."""
    while True:
        record = read_record(run)
        path = Path(record.private) / "spec.json" if record and record.private else None
        if path is not None and path.exists():
            return read_spec(path)
        await anyio.sleep(LOOK_S)


async def _ask(client: EngineClient, index: int, vocab_size: int, turns: list[Turn]) -> None:
    rng = random.Random(index)
    sampling = SamplingParams(max_new_tokens=TURN_TOKENS)
    for number in itertools.count():
        prompt = rng.choices(range(3, vocab_size), k=PROMPT_TOKENS)
        began, since = time.time(), time.monotonic()
        try:
            reply = await client.generate(
                prompt, sampling, routing_key=f"probe/{index}/{number}", priority=0
            )
        except EngineError:
            continue  # the engines are not there yet
        seconds = time.monotonic() - since
        turns.append(Turn(began, seconds, len(reply.output_ids), len(set(reply.versions))))
