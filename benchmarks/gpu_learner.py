"""The learner of one rank on one GPU, in bfloat16, on a random model of the size of Qwen3-1.7B.

    tokens/WHAT       of whole steps of packed sequences; `recomputed`: with full recomputation
    mfu/WHAT          6 operations for each token and parameter, and those of attention, as a share
                      of what one large product in bfloat16 reaches on the same GPU in the same run
    scored            tokens whose log-probabilities are computed without a step
    memory_vs_plan    the most memory of a step whose every label is scored, against what
                      `agentrl plan` foresees
    export            weights as engines take them: gathered, named, packed into buckets
    lay_down, take_up what `--offload-train` moves to the host and back, after the first time
    first_lay_down    the same with the host's memory still to be page-locked
    save, load        a checkpoint on a local disk

Needs a GPU, 64 GiB of it. Medians of the turns, by the clock.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.rows import MicroBatch
from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend, rehearse
from agentrl.models.registry import open_model
from agentrl.serving.buckets import BucketStream
from benchmarks import ROOT, Row, report
from benchmarks.learner import Trajectory, backend_of, loss, micro_batch

LAYERS, HIDDEN, FFN, HEADS, GROUPS, WIDTH, VOCABULARY = 28, 2048, 6144, 16, 8, 128, 151_936
AGAIN = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
#: Megatron settings of each way, and the tokens of a micro-batch.
WAYS: dict[str, tuple[dict[str, Any], int]] = {"recomputed": (AGAIN, 16384), "kept": ({}, 8192)}
NUM_MICRO_BATCHES, SCORED, LONGEST = 4, 0.5, 4096
PRODUCT = 8192
BUCKET_BYTES = 512 << 20
GIGABYTE = 1e9


def make_model(folder: Path) -> Path:
    """A random Qwen3 in bfloat16, made on the GPU."""
    import transformers

    config = transformers.Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=WIDTH,
        vocab_size=VOCABULARY,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
    )
    torch.manual_seed(7)
    with torch.device("cuda"):
        model = transformers.Qwen3ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    del model
    torch.cuda.empty_cache()
    return folder


def config_of(way: str) -> RunConfig:
    """Of a run on one GPU."""
    settings, tokens = WAYS[way]
    config = RunConfig(
        actor_num_gpus_per_node=1,
        rollout_num_gpus=1,
        colocate=True,
        lr=1e-6,
        max_tokens_per_gpu=tokens,
        rollout_max_context_len=LONGEST,
        megatron=settings,
    )
    return for_device(config, "cuda")


def batch_of(lengths: Sequence[int], sampled: float) -> MicroBatch:
    """Random sequences, whose last part is scored."""
    generator = torch.Generator().manual_seed(sum(lengths))
    return micro_batch([Trajectory(n, VOCABULARY, generator, sampled) for n in lengths])


def clocked(work: Callable[[], Any]) -> float:
    """Seconds until the GPU has done it."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def usual(work: Callable[[], Any], turns: int) -> float:
    """Median seconds, after one turn that is not counted."""
    clocked(work)
    return statistics.median(clocked(work) for _ in range(turns))


def product_rate(turns: int) -> float:
    """Operations a second of one large product."""
    factor = torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16)
    return 2 * PRODUCT**3 / usual(lambda: factor @ factor, turns)


def speed_rows(way: str, folder: Path, turns: int) -> list[Row]:
    """Steps of the given way; of the first also what memory they take, and what is moved."""
    config = config_of(way)
    tokens = config.max_tokens_per_gpu
    peak = product_rate(turns)
    lengths = [tokens // 4] * 2 + [tokens // 8] * 2 + [tokens // 16] * 4
    batches = [batch_of(lengths, SCORED)] * NUM_MICRO_BATCHES
    with backend_of(folder, config) as backend:
        step_s = usual(lambda: backend.step("policy", batches, loss), turns)
        run_s = usual(lambda: backend.run("policy", batches), turns)
        rows = []
        if way == "recomputed":
            rows = memory_row(backend, config, folder) + moving_rows(backend, turns)
    torch.cuda.empty_cache()
    num = NUM_MICRO_BATCHES * tokens
    # of each pass, 4 of attention for a pair of tokens that see each other and a channel
    pairs = NUM_MICRO_BATCHES * sum(length**2 / 2 for length in lengths)
    operations = 6 * parameters() * num + 3 * 4 * LAYERS * HEADS * WIDTH * pairs
    said = f"a product's {peak / 1e12:.0f} TFLOP/s"
    return [
        Row(f"tokens/{way}", num / step_s, "tokens/s", "higher is better"),
        Row(f"mfu/{way}", operations / step_s / peak, "share", said),
        Row(f"scored/{way}", num / run_s, "tokens/s", "higher is better"),
        *rows,
    ]


def parameters() -> int:
    """Of all but the norms."""
    attention = HIDDEN * WIDTH * (2 * HEADS + 2 * GROUPS)
    return LAYERS * (attention + 3 * HIDDEN * FFN) + VOCABULARY * HIDDEN


def memory_row(backend: MegatronBackend, config: RunConfig, folder: Path) -> list[Row]:
    """Of the micro-batches that the plan imagines."""
    batch = batch_of([LONGEST] * (config.max_tokens_per_gpu // LONGEST), 1.0)
    torch.cuda.reset_peak_memory_stats()
    backend.step("policy", [batch], loss)
    taken = torch.cuda.max_memory_allocated()
    command = [sys.executable, "-m", "benchmarks.gpu_learner", "--foresee", str(folder)]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run(command, env=hidden, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    foreseen = int(said.stdout.split()[-1])
    against = f"1; {taken / 2**30:.1f} GiB, foreseen {foreseen / 2**30:.1f}"
    return [Row("memory_vs_plan", taken / foreseen, "ratio", against)]


def foresee(folder: Path) -> int:
    """Bytes of a step at its peak, on a host whose GPUs are hidden."""
    architecture = open_model(folder, None).architecture
    return int(rehearse(config_of("recomputed"), architecture, 0, LONGEST).peak)


class Walks:
    """The weights, gathered each time."""

    def __init__(self, backend: MegatronBackend) -> None:
        self._backend = backend

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self._backend.hf_tensors()


def moving_rows(backend: MegatronBackend, turns: int) -> list[Row]:
    """Weights to engines, memory to the host and back, checkpoints."""
    before = [tensor.clone() for _, tensor in backend.hf_tensors()]

    def export() -> int:
        return sum(bucket.payload.nbytes for bucket in BucketStream(Walks(backend), BUCKET_BYTES))

    rate = export() / usual(export, turns) / GIGABYTE
    rows = [Row("export", rate, "GB/s", "higher is better")]
    kept = torch.cuda.memory_allocated()
    downs, ups = [], []
    for _ in range(turns + 1):
        downs.append(clocked(lambda: backend.lay_down(weights=True)))
        moved = kept - torch.cuda.memory_allocated()
        ups.append(clocked(backend.take_up))
    for name, seconds in (("lay_down", downs[1:]), ("take_up", ups[1:])):
        each = moved / statistics.median(seconds) / GIGABYTE
        rows.append(Row(name, each, "GB/s", f"of {moved / GIGABYTE:.0f} GB that become free"))
    rows.append(Row("first_lay_down", moved / downs[0] / GIGABYTE, "GB/s"))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        seconds = [clocked(lambda: backend.save_state(place))]
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        seconds.append(clocked(lambda: backend.load_state(place)))
    for name, each in zip(("save", "load"), seconds, strict=True):
        rows.append(Row(name, size / each / GIGABYTE, "GB/s", f"of {size / GIGABYTE:.0f} GB"))
    after = (tensor for _, tensor in backend.hf_tensors())
    if not all(map(torch.equal, before, after)):
        raise SystemExit("weights that were moved to the host or a disk came back as others")
    return rows


def main(arguments: list[str]) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--foresee", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.foresee is not None:
        print(foresee(args.foresee))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = make_model(Path(name))
        rows = [row for way in WAYS for row in speed_rows(way, folder, args.turns)]
    report("gpu_learner", [Row("product", product_rate(args.turns) / 1e12, "TFLOP/s"), *rows])


if __name__ == "__main__":
    main(sys.argv[1:])
