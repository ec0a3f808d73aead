"""How far apart engine and learner are, in log-probabilities of what the engine sampled, by
precision: the measurement behind the limits of `agentrl/learner/health.py`.

An SGLang engine on the CPU samples from random prompts; `MegatronBackend` with the same weights and
in the same precision scores what it sampled. Three models: the default job's, which is trained, and
two random ones whose logits are as spread as a trained model's: 24 layers deep, and with the
vocabulary of a large model. Each at the temperatures 1 and 0.7; the first also in float32 under
`--true-on-policy-mode`, with what that costs.

`python -m benchmarks.precision shipped` measures the first alone, prints it and writes nothing.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import psutil
import torch
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.cluster.ports import free_ports
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.serving.client import EngineClient
from agentrl.types import EngineAddress, SamplingParams
from benchmarks import Row, report
from benchmarks.engines import running_engine, until_ready

SHIPPED = Path(__file__).resolve().parent.parent / "agentrl/envs/search_r1/model"
#: Standard deviation of a random model's logits, in nats: its policy has an entropy of 2 to 5.
SPREAD = 3.0
SHAPES: dict[str, dict[str, int]] = {
    "24 layers": {"num_hidden_layers": 24, "hidden_size": 256, "vocab_size": 8192},
    "152k words": {"num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 151936},
}
#: A precision, and whether both sides compute exactly.
WAYS = (("float32", False), ("bfloat16", False))
EXACT = ("float32", True)
TEMPERATURES = (1.0, 0.7)
NUM_EPISODES, NUM_SAMPLED, PROMPT = 48, 96, 40
LIMIT_S = 240.0


class Sampled(NamedTuple):
    """One reply: the prompt, what was sampled after it, and the engine's log-probabilities."""

    prompt: list[int]
    output: list[int]
    logprobs: list[float]


def make_model(shape: dict[str, int], folder: Path) -> Path:
    """A random Qwen3 with these sizes in `folder`."""
    import transformers

    config = transformers.Qwen3Config(
        **shape,
        intermediate_size=3 * shape["hidden_size"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        architectures=["Qwen3ForCausalLM"],
    )
    torch.manual_seed(7)
    model = transformers.Qwen3ForCausalLM(config).float()
    # The last norm makes each hidden value 1 in the mean square.
    torch.nn.init.normal_(model.lm_head.weight, std=SPREAD / shape["hidden_size"] ** 0.5)
    model.save_pretrained(folder)
    return folder


def sample(
    model: Path, dtype: str, temperature: float, vocab: int, *, is_exact: bool = False
) -> tuple[list[Sampled], float]:
    """What an engine of that precision samples from random prompts, and the seconds of processor
    time that it spends on it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "engine.log"
        with running_engine(model, log, dtype=dtype, is_exact=is_exact) as (address, process):
            return anyio.run(_replies, address, process, temperature, vocab)


def _seconds_of(process: psutil.Process) -> float:
    every = [process, *process.children(recursive=True)]
    return float(sum(one.cpu_times().user + one.cpu_times().system for one in every))


async def _replies(
    address: EngineAddress, process: "subprocess.Popen[bytes]", temperature: float, vocab: int
) -> tuple[list[Sampled], float]:
    rng = random.Random(11)
    prompts = [rng.choices(range(3, vocab), k=PROMPT) for _ in range(NUM_EPISODES)]
    params = SamplingParams(max_new_tokens=NUM_SAMPLED, temperature=temperature)
    found: list[Sampled] = []
    await until_ready(address, process, LIMIT_S)
    engine = psutil.Process(process.pid)
    before = _seconds_of(engine)
    async with EngineClient(
        address.url,
        [address],
        vocab_size=vocab,
        max_context=1024,
        num_permits=NUM_EPISODES,
        turn_timeout_s=LIMIT_S,
    ) as client:

        async def ask(number: int) -> None:
            reply = await client.generate(
                prompts[number], params, routing_key=str(number), priority=number
            )
            outcome = (list(reply.output_ids), list(reply.logprobs))
            found.append(Sampled(prompts[number], *outcome))

        async with anyio.create_task_group() as tasks:
            for number in range(NUM_EPISODES):
                tasks.start_soon(ask, number)
    return found, _seconds_of(engine) - before


def score(
    model: Path,
    dtype: str,
    temperature: float,
    replies: Sequence[Sampled],
    *,
    is_exact: bool = False,
) -> tuple[Tensor, Tensor, float]:
    """Log-probabilities of all sampled tokens, the engine's and the learner's, and the seconds of
    processor time that the learner spends on them and on a step."""
    backend = MegatronBackend(
        RunConfig(
            actor_num_gpus_per_node=1,
            rollout_temperature=temperature,
            true_on_policy_mode=is_exact,
            megatron={"bf16": dtype == "bfloat16"},
        ),
        model,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1)[0],
        num_training_steps=None,
    )
    batches = [_packed(reply) for reply in replies]
    before = time.process_time()
    try:
        found = backend.run("policy", batches)
        backend.step("policy", batches, _mean_logprob)
    finally:
        spent = time.process_time() - before
        backend.close()
    learner = [
        scores[len(reply.prompt) - 1 : -1] for scores, reply in zip(found, replies, strict=True)
    ]
    engine = [torch.tensor(reply.logprobs) for reply in replies]
    return torch.cat(engine), torch.cat(learner), spent


def _mean_logprob(_: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    return out.logprobs_T.mean(), {}


def _packed(reply: Sampled) -> MicroBatch:
    tokens = torch.tensor([*reply.prompt, *reply.output])
    labels = tokens.roll(-1)
    labels[-1] = 0
    ends = torch.tensor([0, len(tokens)], dtype=torch.int32)
    return MicroBatch(tokens, labels, torch.arange(len(tokens)), ends, len(tokens), {})


def measure(
    name: str, model: Path, vocab: int, ways: Sequence[tuple[str, bool]] = WAYS
) -> list[Row]:
    """The rows of one model."""
    rows = []
    for dtype, is_exact in ways:
        for temperature in TEMPERATURES:
            replies, spent = sample(model, dtype, temperature, vocab, is_exact=is_exact)
            engine, learner, learning = score(model, dtype, temperature, replies, is_exact=is_exact)
            facts: dict[str, Any] = {
                "mean": (engine - learner).abs().mean(),
                "max": (engine - learner).abs().max(),
                "KL": (engine - learner).mean(),
            }
            what = f"{name} {dtype}{' exactly' * is_exact} at {temperature:g}"
            rows += [Row(f"{what}, {k}", round(float(v), 9), "nats") for k, v in facts.items()]
            rows.append(Row(f"{what}, -log p", round(-float(engine.mean()), 3), "nats"))
            equal = float((engine == learner).float().mean())
            rows.append(Row(f"{what}, bit-equal", round(equal, 4), "share"))
            per_ms = 1e3 / len(engine)
            rows.append(
                Row(f"{what}, engine", round(spent * per_ms, 2), "ms of a core for a token")
            )
            rows.append(
                Row(f"{what}, learner", round(learning * per_ms, 2), "ms of a core for a token")
            )
            print(*rows[-7:], sep="\n", file=sys.stderr)
    return rows


def main() -> None:
    rows = measure("default job", SHIPPED, 2048, (*WAYS, EXACT))
    if "shipped" in sys.argv[1:]:
        return
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, make_model(shape, Path(folder)), shape["vocab_size"])
    report("precision", rows)


if __name__ == "__main__":
    main()
