"""What a push costs agents of many turns in prefill, and what keeping the cache costs in truth.

    prefill_per_sampled_WAY  tokens that the engine computed without sampling, for each sampled one
    logprob_gap_keep         |engine - transformers| log-probability under the version of a token,
                             everything computed anew; under `keep`, of tokens whose turn began
                             with an older version
    policy_shift             |log-probability under the version of a token - under that of its
                             turn's first one|, of the same tokens: what the policy has moved
    pushes_WAY, turns_through_a_push_WAY

WAY: `recompute`, `keep` (--kv-across-pushes), `keep_N` (--kv-cache-versions N beside it).

One real engine with the default job's model. Agents of `TURNS` turns, `TASKS` at once, say what
they sampled and then some tokens of a tool; a learner steps and pushes every two seconds (AdamW at
the default job's rate, policy gradients of random signs). Prefill is read from the engine's log.
"""

import argparse
import itertools
import random
import re
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
import msgspec
import torch
from anyio import to_thread
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.models.registry import families
from agentrl.serving.client import EngineClient
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, Generation, SamplingParams
from benchmarks import Row, report
from benchmarks.engines import Process, running_engine, until_ready

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
VOCABULARY, CONTEXT = 2048, 1024
TASKS, TURNS, PROMPT, SAMPLED, SAID = 16, 16, 40, 48, 10
LEARNING_RATE = 2e-4
EVERY_S, START_S = 2.0, 600.0
#: Way, and the versions that share a part of the cache; None: a push drops it.
WAYS: dict[str, int | None] = {"recompute": None, "keep": 1, "keep_8": 8}
_PREFILL = re.compile(r"Prefill batch.*?#new-token: (\d+)")
Weights = dict[str, Tensor]


class Turn(msgspec.Struct, frozen=True):
    prompt: list[int]
    sampled: Generation


class Found(msgspec.Struct, frozen=True):
    """Of one way; `weights` by version."""

    turns: list[Turn]
    weights: dict[int, Weights]

    @property
    def crossed(self) -> list[Turn]:
        return [turn for turn in self.turns if len(set(turn.sampled.versions)) > 1]


class Policy:
    """Weights that change by steps as a run's do."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self._draw = torch.Generator().manual_seed(2)

    def weights(self) -> Weights:
        return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    def step(self) -> None:
        """Up or down with the likelihood of what the model itself would say."""
        start = torch.randint(3, VOCABULARY, (16, 8), generator=self._draw)
        said = self.model.generate(
            start, do_sample=True, top_k=0, max_new_tokens=24, pad_token_id=0
        )
        logits = self.model(said).logits[:, :-1].log_softmax(-1)
        logprobs = logits.gather(2, said[:, 1:, None])[..., 0][:, 8:]
        signs = torch.randint(0, 2, (16, 1), generator=self._draw) * 2 - 1
        (-(signs * logprobs).mean()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def scores(self, weights: Weights, turn: Turn) -> Tensor:
        """Log-probabilities of what the turn sampled."""
        self.model.load_state_dict(weights, strict=False)
        ids = turn.prompt + turn.sampled.output_ids
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0, len(turn.prompt) - 1 : -1]
        output = torch.tensor(turn.sampled.output_ids)[:, None]
        found: Tensor = logits.log_softmax(-1).gather(1, output)[:, 0]
        return found


def prefilled(log: Path) -> int:
    return sum(map(int, _PREFILL.findall(log.read_text(errors="replace"))))


async def play(client: EngineClient, task: int, turns: list[Turn]) -> None:
    """The turns of one agent."""
    draw = random.Random(task)
    sampling = SamplingParams(max_new_tokens=SAMPLED, temperature=1.0)
    ids = [draw.randrange(3, VOCABULARY) for _ in range(PROMPT)]
    for _ in range(TURNS):
        answer = await client.generate(ids, sampling, routing_key=f"agent-{task}", priority=task)
        turns.append(Turn(ids, answer))
        ids = [*ids, *answer.output_ids, *(draw.randrange(3, VOCABULARY) for _ in range(SAID))]


async def learn(
    client: EngineClient, sink: FleetWeightSink, policy: Policy, weights: dict[int, Weights]
) -> None:
    """A step and a push every `EVERY_S`, until cancelled; version 1 is there already."""
    due = time.monotonic()
    for version in itertools.count(2):
        due += EVERY_S
        await to_thread.run_sync(policy.step)
        weights[version] = policy.weights()
        await anyio.sleep(max(0.0, due - time.monotonic()))
        with anyio.CancelScope(shield=True):
            publish = partial(sink.publish, version, weights[version].items())
            await to_thread.run_sync(publish)
            client.new_weights(version)


async def run(address: EngineAddress, process: Process, shared: int | None, rounds: int) -> Found:
    """`rounds` agents one after the other in each of `TASKS` places."""
    await until_ready(address, process, START_S)
    turns, policy = list[Turn](), Policy()
    weights = {1: policy.weights()}

    async def place(number: int) -> None:
        for turn in range(rounds):
            await play(client, number + turn * TASKS, turns)

    sink = FleetWeightSink(
        [address],
        bucket_bytes=1 << 26,
        timeout_s=60,
        fleet_size=1,
        fused=families()["qwen3"].engine_fused,
        on_lost=print,
        keeps_cache=shared is not None,
    )
    async with EngineClient(
        address.url,
        [address],
        vocab_size=VOCABULARY,
        max_context=CONTEXT,
        num_permits=TASKS,
        turn_timeout_s=600,
        cache_versions=shared,
    ) as client:
        with sink:
            await to_thread.run_sync(partial(sink.publish, 1, weights[1].items()))
            client.new_weights(1)
            async with anyio.create_task_group() as learner:
                learner.start_soon(learn, client, sink, policy, weights)
                async with anyio.create_task_group() as group:
                    for number in range(TASKS):
                        group.start_soon(place, number)
                learner.cancel_scope.cancel()
    return Found(turns, weights)


def gaps(found: Found, most: int) -> tuple[float, float]:
    """Of tokens whose turn began with an older version: engine from truth, and version from
    version."""
    policy = Policy()
    gap, shift = list[float](), list[float]()
    for turn in found.crossed[:most]:
        versions = turn.sampled.versions
        scores = {v: policy.scores(found.weights[v], turn) for v in sorted(set(versions))}
        for place, version in enumerate(versions):
            if version != versions[0]:
                truth = float(scores[version][place])
                gap.append(abs(turn.sampled.logprobs[place] - truth))
                shift.append(abs(truth - float(scores[versions[0]][place])))
    return statistics.fmean(gap), statistics.fmean(shift)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4, help="agents in each place")
    parser.add_argument("--most", type=int, default=200, help="turns that are scored again")
    given = parser.parse_args()
    rows = list[Row]()
    for way, shared in WAYS.items():
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "engine.log"
            with running_engine(MODEL, log) as (address, process):
                found = anyio.run(run, address, process, shared, given.rounds)
            computed = prefilled(log)
        sampled = sum(len(turn.sampled.output_ids) for turn in found.turns)
        against = None if way == "recompute" else "prefill_per_sampled_recompute"
        rows += [
            Row(f"prefill_per_sampled_{way}", computed / sampled, "tokens", against),
            Row(f"pushes_{way}", max(found.weights) - 1, "pushes"),
            Row(f"turns_through_a_push_{way}", len(found.crossed), "turns"),
        ]
        print(rows[-3:], flush=True)
        if way == "keep":
            gap, shift = gaps(found, given.most)
            rows.append(Row("logprob_gap_keep", gap, "nats", "policy_shift"))
            rows.append(Row("policy_shift", shift, "nats"))
    report("kv", rows)


if __name__ == "__main__":
    main()
