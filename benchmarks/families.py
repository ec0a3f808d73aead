"""Each model family beside transformers, on this machine: a small random member of its shape.

    learner/NAME    largest difference of a log-probability of the learner, packed, in nats
    unequal/NAME    tensors of its checkpoint that do not come out of the learner bit for bit
    engine/NAME     largest difference of a log-probability of an SGLang engine, which took the
                    learner's weights by a push and answers greedily
    tokens/NAME     sampled tokens that transformers would not have chosen
    iteration/NAME  the same between learner and engine, over what was sampled in one iteration of
                    `train_async.py`, which trains, pushes and saves the model

Everything in float32. docs/models.md has the results (`python scripts/gen_models.py`).
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)

from agentrl.algorithms.rows import MicroBatch
from agentrl.cluster.ports import free_ports
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families, open_model
from agentrl.serving.client import EngineClient
from agentrl.serving.control import EngineControl
from agentrl.serving.cpu import ATTENTION_BACKEND
from agentrl.serving.weights import FleetWeightSink
from agentrl.types import EngineAddress, Generation, SamplingParams
from benchmarks import ROOT, Row, report
from benchmarks.engines import running_engine

#: Of a model that engines serve in these measurements.
VOCAB_SIZE, MAX_CONTEXT = 500, 1024
NUM_REQUESTS, NUM_NEW = 16, 24
#: Of random weights, where it is not 0.2. Two orders of summing within transformers differ by 7e-4
#: where those of a delta net are larger.
SPREADS = {
    name: 0.05 for name, family in families().items() if "linear_num_key_heads" in family.tiny
}
#: Files of a model that sees, and what they say.
EYES = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "processor_class": "Qwen3VLProcessor",
    },
    "video_preprocessor_config.json": {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "processor_class": "Qwen3VLProcessor",
    },
}
#: Seconds after which an engine counts as hung.
START_S, CALL_S = 1800, 300
#: The tokenizer of the default job, whose questions the iteration plays.
TOKENIZER = ROOT / "agentrl/envs/search_r1/model"
#: Its rewards differ within a group of random texts, so that there is something to learn.
REWARD = """
def vowels(text, label, task):
    return sum(map(text.count, "aeiou")) / (len(text) + 1)
"""


def make_model(config: Mapping[str, Any], folder: Path, seed: int) -> PreTrainedModel:
    """The random model that a config.json describes, saved in `folder`."""
    torch.manual_seed(seed)
    described = describe(config)
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    model: PreTrainedModel = kind.from_config(described).to(torch.float32).eval()
    for name, tensor in model.state_dict().items():
        if "norm" in name or "bias" in name or "sinks" in name:
            tensor.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    complete(config, folder)
    return model


def describe(config: Mapping[str, Any]) -> PreTrainedConfig:
    """transformers' configuration for the keys of a decoder, which one that sees nests."""
    if "vision_config" not in config:
        return AutoConfig.for_model(**config)
    return AutoConfig.for_model(
        config["model_type"].removesuffix("_text"),
        text_config=_text_of(config),
        vision_config=dict(config["vision_config"]),
        tie_word_embeddings=config["tie_word_embeddings"],
    )


def complete(config: Mapping[str, Any], folder: Path) -> None:
    """Write into the config.json that transformers saved what published ones have: it has the name
    of its class there, which may stand in for the model's own, and leaves keys out. An engine of a
    model that sees wants to know how pictures are cut, also where it gets none."""
    path, named = folder / "config.json", {"architectures": list(config["architectures"])}
    saved = json.loads(path.read_text())
    if "vision_config" in config:
        nested = {"text_config": {**_text_of(config), **saved["text_config"]}}
        path.write_text(json.dumps(saved | nested | named))
        for name, kind in EYES.items():
            (folder / name).write_text(json.dumps(kind))
    else:
        path.write_text(json.dumps({**config, **saved, **named}))


def _text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    outside = ("vision_config", "architectures")
    return {key: value for key, value in config.items() if key not in outside}


def member(family: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """config.json of a member of a family that an engine can serve."""
    served: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_CONTEXT}
    served["initializer_range"] = SPREADS.get(family, 0.2)
    ids = {"eos_token_id": None, "bos_token_id": 0, "pad_token_id": 0}
    found = families()[family]
    named = {"architectures": list(found.architectures[:1])}
    return {**found.tiny, **(changes or {}), **served, **ids, **named}


def open_learner(folder: Path) -> MegatronBackend:
    """A learner of one rank."""
    return MegatronBackend(
        RunConfig(actor_num_gpus_per_node=1),
        folder,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1)[0],
        num_training_steps=None,
    )


def packed(lengths: Sequence[int]) -> MicroBatch:
    """One micro-batch of random sequences, all of whose tokens are scored."""
    tokens = torch.randint(0, VOCAB_SIZE, (sum(lengths),))
    return MicroBatch(
        tokens_T=tokens,
        labels_T=tokens.roll(-1),
        positions_T=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=max(lengths),
        columns={"mask": torch.ones(len(tokens))},
    )


@torch.no_grad()
def scores(model: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """Log-probabilities of the labels by transformers, one sequence at a time."""
    sizes = batch.cu_seqlens.diff().tolist()
    sequences = zip(
        torch.split(batch.tokens_T, sizes), torch.split(batch.labels_T, sizes), strict=True
    )
    found = [
        model(tokens[None]).logits[0].log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        for tokens, labels in sequences
    ]
    return torch.cat(found)


def learned(folder: Path) -> dict[str, Tensor]:
    """What a learner sends of the model in `folder`."""
    with closing(open_learner(folder)) as backend:
        return {name: tensor.clone() for name, tensor in backend.hf_tensors()}


def learner_beside(model: PreTrainedModel, folder: Path) -> tuple[float, int, dict[str, Tensor]]:
    """The worst difference of a log-probability, how many tensors come out other than they went
    in, and the tensors."""
    batch = packed([30, 7, 190, 19, 1])
    with closing(open_learner(folder)) as backend:
        (found,) = backend.run("policy", [batch])
        sent = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    stored = load_file(folder / "model.safetensors")
    is_passenger = open_model(folder, None).is_passenger
    stored = {name: tensor for name, tensor in stored.items() if not is_passenger(name)}
    unequal = sum(
        name not in sent or name not in stored or not torch.equal(sent[name], stored[name])
        for name in stored.keys() | sent.keys()
    )
    return float((found - scores(model, batch)).abs().max()), unequal, sent


@contextmanager
def engine_of(model: Path, log: Path, groups: int = 1) -> Iterator[tuple[EngineAddress, Any]]:
    """An engine of the model, and its process: of `groups` ranks that each attend to requests of
    their own."""
    ranks = {"tp_size": groups, "attn_dp_size": groups} if groups > 1 else {}
    extra = {"max_total_tokens": 16384, **ranks}
    with running_engine(model, log, extra=extra) as (engine, process):
        assert ATTENTION_BACKEND in cast(tuple[str, ...], process.args)
        yield engine, process


def push(family: str, engine: EngineAddress, tensors: dict[str, Tensor], groups: int = 1) -> None:
    """Send the weights as version 1, and look at them in an engine of one rank that tells them."""
    lost: list[str] = []
    with FleetWeightSink(
        [msgspec.structs.replace(engine, num_ranks=groups)],
        bucket_bytes=50_000,
        timeout_s=CALL_S,
        fleet_size=1,
        engine_dtype=torch.float32,
        fused=families()[family].engine_fused,
        on_lost=lambda engine: lost.append(engine.name),
    ) as sink:
        sink.publish(1, tensors.items())
        if groups == 1 and families()[family].engine_digests:
            sink.verify(tensors.items())
    if lost:
        raise RuntimeError(f"{lost[0]} fell out of the push")


def prompts() -> list[list[int]]:
    """Lengths from 1 to 200; half of them go on from one of two shared prefixes."""
    rng = random.Random(0)
    stems = [rng.choices(range(VOCAB_SIZE), k=length) for length in (40, 130)]
    alone = [rng.choices(range(VOCAB_SIZE), k=length) for length in (1, 2, 3, 17, 64, 90, 150, 200)]
    shared = [stems[i % 2] + rng.choices(range(VOCAB_SIZE), k=1 + 7 * i) for i in range(8)]
    return alone + shared


async def generate(engine: EngineAddress, rounds: int, groups: int = 1) -> list[Generation]:
    """All prompts at once, greedily, `rounds` times: later rounds find their prefixes cached."""
    sampling = SamplingParams(temperature=0.0, max_new_tokens=NUM_NEW)
    replies: list[Generation] = []
    async with EngineClient(
        engine.url,
        [engine],
        vocab_size=VOCAB_SIZE,
        max_context=MAX_CONTEXT,
        num_permits=NUM_REQUESTS,
        turn_timeout_s=CALL_S,
        attention_ranks=groups,
    ) as client:
        for _ in range(rounds):
            got: dict[int, Generation] = {}

            async def one(number: int, ids: list[int], got: dict[int, Generation] = got) -> None:
                key = f"request {number}"
                got[number] = await client.generate(ids, sampling, routing_key=key, priority=0)

            async with anyio.create_task_group() as group:
                for number, ids in enumerate(prompts()):
                    group.start_soon(one, number, ids)
            replies += [got[number] for number in range(NUM_REQUESTS)]
    return replies


@torch.no_grad()
def beside(model: PreTrainedModel, prompt: Sequence[int], reply: Generation) -> tuple[float, int]:
    """The worst difference of a reply's log-probabilities, and the tokens of it that transformers
    would not have chosen. Greedy requests report the log-probability at temperature 1."""
    ids = torch.tensor([[*prompt, *reply.output_ids]])
    log_p = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    wanted = log_p[range(len(reply.output_ids)), reply.output_ids]
    others = sum(a != b for a, b in zip(log_p.argmax(-1).tolist(), reply.output_ids, strict=True))
    return float((torch.tensor(reply.logprobs) - wanted).abs().max()), others


async def engine_beside(
    family: str,
    model: PreTrainedModel,
    first: Path,
    tensors: dict[str, Tensor],
    groups: int = 1,
) -> tuple[float, int]:
    """An engine begins with the model in `first`, takes `tensors` by a push, and is compared with
    `model`: the worst difference, and the tokens that transformers would not have chosen."""
    with engine_of(first, first.with_suffix(".log"), groups) as (engine, process):
        async with EngineControl(engine, timeout_s=CALL_S) as control:
            await control.wait_ready(START_S, lambda: process.poll() is None)
        await anyio.to_thread.run_sync(push, family, engine, tensors, groups)
        replies = await generate(engine, 2, groups)
    if wrong := [reply for reply in replies if reply.versions != [1] * NUM_NEW]:
        raise RuntimeError(f"{len(wrong)} replies are not {NUM_NEW} tokens of version 1")
    differences, others = zip(
        *(
            beside(model, prompt, reply)
            for prompt, reply in zip(prompts() * 2, replies, strict=True)
        ),
        strict=True,
    )
    return max(differences), sum(others)


def iterate(family: str, folder: Path, *flags: str) -> float:
    """One iteration on a random member of the family: the worst difference between engine and
    learner over what was sampled. RuntimeError if it fails, trains nothing or saves no model."""
    shipped = json.loads((TOKENIZER / "config.json").read_text())
    ids = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    make_model({**member(family), **{name: shipped[name] for name in ids}}, folder / "model", 0)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder / "model" / name)
    (folder / "rows.jsonl").write_text('{"q": "Name a city."}\n{"q": "Name a river."}\n' * 4)
    (folder / "reward.py").write_text(REWARD)
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--env", "single-turn",
        "--prompt-data", "rows.jsonl", "--input-key", "q", "--custom-rm-path", "reward.py:vowels",
        "--hf-checkpoint", "model", "--num-rollout", "1", "--rollout-batch-size", "2",
        "--n-samples-per-prompt", "4", "--rollout-max-response-len", "32",
        "--rollout-max-context-len", "512", "--actor-num-gpus-per-node", "1",
        "--rollout-num-gpus", "1", "--lr", "1e-3", "--save-hf", "trained",
        "--run-dir", ".", "--run-id", "one", *flags,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise RuntimeError(f"{family}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    lines = map(json.loads, (folder / "one" / "metrics.jsonl").read_text().splitlines())
    (step,) = (line["metrics"] for line in lines if "train/num_tokens" in line.get("metrics", {}))
    before, after = (
        load_file(folder / name / "model.safetensors") for name in ("model", "trained")
    )
    if (
        before.keys() != after.keys()
        or not step["train/num_tokens"]
        or step["train/grad_norm"] == 0
    ):
        raise RuntimeError(f"{family}: nothing was trained, or the saved model lacks a tensor")
    return float(step["train/logprob_diff_max"])


def rows(family: str, folder: Path) -> list[Row]:
    """All that is measured of one family."""
    make_model(member(family), folder / "first", seed=0)
    model = make_model(member(family), folder / "learned", seed=1)
    difference, unequal, tensors = learner_beside(model, folder / "learned")
    served, others = anyio.run(engine_beside, family, model, folder / "first", tensors)
    apart = iterate(family, folder)
    return [
        Row(f"learner/{family}", difference, "nats", "transformers"),
        Row(f"unequal/{family}", unequal, "tensors", "its checkpoint"),
        Row(f"engine/{family}", served, "nats", "transformers"),
        Row(f"tokens/{family}", others, "tokens", f"transformers, of {2 * NUM_REQUESTS * NUM_NEW}"),
        Row(f"iteration/{family}", apart, "nats", "its engine"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=list(families()), help="(default: all)")
    found: list[Row] = []
    for family in parser.parse_args().families:
        with tempfile.TemporaryDirectory() as folder:
            found += rows(family, Path(folder))
        print(*(f"{row.metric} {row.value:.3g}" for row in found[-5:]), flush=True)
    report("families", found)


if __name__ == "__main__":
    main()
