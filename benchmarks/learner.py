"""The learner's step beside plain transformers, and what the vocabulary costs it.

    vs_hf                  tokens/s of a step, against transformers over each trajectory alone
    packed_vs_padded       against transformers over padded batches, as trajectories come
    memory_vs_logits       peak of a step over 4,096 tokens and 152k words, above the loaded model,
                           against the bytes of its float32 logits
    time_vs_cross_entropy  log-probability and entropy with their gradient, from hidden states,
                           against the output layer and torch's cross entropy

Everything in one process with one thread, in turns; processor seconds, since the machine may be
busy. Medians of the turns. Both sides clip the gradient; transformers computes no entropy.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from agentrl.algorithms.rows import MicroBatch, Outputs
from agentrl.cluster.ports import free_ports
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.megatron.logprob import logprobs_and_entropy
from benchmarks import Row, report
from benchmarks.precision import make_model

#: The model of the speed rows, and the trajectories of one step.
SHAPE = {"num_hidden_layers": 4, "hidden_size": 192, "vocab_size": 8192}
NUM_TRAJECTORIES, SHORTEST, LONGEST, SAMPLED = 19, 140, 590, 0.67
PACK, PADDED_ROWS = 8192, 4
#: The model of the memory row, and the sizes of the output layer of a model of half a billion.
WIDE = {"num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 151_936}
WIDE_TOKENS, HEAD_TOKENS, HEAD_WIDTH = 4096, 1024, 896
LR, CLIP = 1e-4, 1.0


class Trajectory:
    """Random tokens, of which the last part is sampled."""

    def __init__(
        self, length: int, vocab: int, generator: torch.Generator, sampled: float = SAMPLED
    ) -> None:
        self.tokens_T = torch.randint(0, vocab, (length,), generator=generator)
        self.labels_T = self.tokens_T.roll(-1)
        self.advantages_T = torch.randn(length, generator=generator)
        self.mask_T = torch.arange(length) >= length * (1 - sampled)
        self.mask_T[-1] = False


def drawn(lengths: Sequence[int], vocab: int) -> list[Trajectory]:
    """Trajectories of these lengths, the same at each call."""
    generator = torch.Generator().manual_seed(11)
    return [Trajectory(length, vocab, generator) for length in lengths]


def packed(trajectories: Sequence[Trajectory]) -> list[MicroBatch]:
    """In micro-batches of at most `PACK` tokens."""
    piles: list[list[Trajectory]] = [[]]
    for each in trajectories:
        if piles[-1] and sum(len(t.tokens_T) for t in [*piles[-1], each]) > PACK:
            piles.append([])
        piles[-1].append(each)
    return [micro_batch(pile) for pile in piles]


def micro_batch(pile: Sequence[Trajectory]) -> MicroBatch:
    """All of them in one."""
    lengths = [len(each.tokens_T) for each in pile]
    mask = torch.cat([each.mask_T for each in pile])
    return MicroBatch(
        tokens_T=torch.cat([each.tokens_T for each in pile]),
        labels_T=torch.cat([each.labels_T for each in pile]),
        positions_T=torch.cat([torch.arange(length) for length in lengths]),
        cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_seqlen=max(lengths),
        columns={
            "mask": mask.float(),
            "scored": mask,
            "advantages": torch.cat([each.advantages_T for each in pile]),
        },
    )


def loss(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    """On-policy gradient: the ratio is 1."""
    gain = (out.logprobs_T - out.logprobs_T.detach()).exp() * batch.columns["advantages"]
    return -(gain * batch.columns["mask"]).mean(), {}


@contextmanager
def backend_of(folder: Path, config: RunConfig | None = None) -> Iterator[MegatronBackend]:
    """The learner of one rank over the model in `folder`."""
    backend = MegatronBackend(
        config or RunConfig(actor_num_gpus_per_node=1, lr=LR, clip_grad=CLIP),
        folder,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1)[0],
        num_training_steps=None,
    )
    try:
        yield backend
    finally:
        backend.close()


class Plain:
    """transformers and torch's AdamW, a batch of rows at a time."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LR, weight_decay=0.0)

    def step(self, batches: Sequence[Sequence[Trajectory]]) -> None:
        """Each batch is padded to its longest row."""
        self._optimizer.zero_grad()
        for batch in batches:
            self._backward(batch)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        self._optimizer.step()

    def _backward(self, batch: Sequence[Trajectory]) -> None:
        def pad(columns: list[Tensor]) -> Tensor:
            return torch.nn.utils.rnn.pad_sequence(columns, batch_first=True)

        tokens = pad([each.tokens_T for each in batch])
        seen = pad([torch.ones_like(each.tokens_T) for each in batch])
        attention = {} if len(batch) == 1 else {"attention_mask": seen}
        logits = self._model(tokens, use_cache=False, **attention).logits
        labels = pad([each.labels_T for each in batch])[..., None]
        logprobs = logits.log_softmax(-1).gather(-1, labels)[..., 0]
        gain = (logprobs - logprobs.detach()).exp()
        gain = gain * pad([each.advantages_T for each in batch])
        torch.autograd.backward(-(gain * pad([each.mask_T for each in batch])).mean())


def spent(work: Callable[[], Any]) -> float:
    """Processor seconds of this process."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def in_turns(turns: int, **works: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, after one turn that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(turns + 1):
        for name, work in works.items():
            seconds = spent(work)
            if turn:
                found[name].append(seconds)
    return {name: statistics.median(each) for name, each in found.items()}


def speed_rows(folder: Path, turns: int) -> list[Row]:
    """A whole step, three ways."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(SHORTEST, LONGEST, (NUM_TRAJECTORIES,), generator=generator).tolist()
    trajectories = drawn(lengths, SHAPE["vocab_size"])
    starts = range(0, len(trajectories), PADDED_ROWS)
    batches = [trajectories[start : start + PADDED_ROWS] for start in starts]
    micro_batches = packed(trajectories)
    plain = Plain(make_model(SHAPE, folder))
    with backend_of(folder) as backend:
        seconds = in_turns(
            turns,
            ours=lambda: backend.step("policy", micro_batches, loss),
            alone=lambda: plain.step([[each] for each in trajectories]),
            padded=lambda: plain.step(batches),
        )
    tokens = sum(lengths)
    return [
        Row("tokens", tokens / seconds["ours"], "tokens/s of one thread", "higher is better"),
        Row("vs_hf", seconds["alone"] / seconds["ours"], "ratio", "at least 1.1"),
        Row("packed_vs_padded", seconds["padded"] / seconds["ours"], "ratio", "at least 1.6"),
    ]


def memory_row(folder: Path) -> Row:
    """Of a step whose every label is scored."""
    (batch,) = packed(drawn([WIDE_TOKENS], WIDE["vocab_size"]))
    batch.columns["scored"][:] = True
    make_model(WIDE, folder)
    with backend_of(folder) as backend:
        # The optimizer's moments are made by the first step.
        backend.step("policy", packed(drawn([64], WIDE["vocab_size"])), loss)
        above = peak_above(lambda: backend.step("policy", [batch], loss))
    logits = WIDE_TOKENS * WIDE["vocab_size"] * 4
    return Row("memory_vs_logits", above / logits, "ratio", "at most 0.5")


def peak_above(work: Callable[[], Any]) -> int:
    """Bytes of resident memory at the peak of `work`, above those before it."""
    pages = Path("/proc/self/statm")

    def resident() -> int:
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    done.set()
    watcher.join()
    return peak - before


def head_row(turns: int) -> Row:
    """The output layer of a model of half a billion, alone."""
    generator = torch.Generator().manual_seed(7)
    hidden = torch.randn(HEAD_TOKENS, HEAD_WIDTH, generator=generator).requires_grad_()
    vocab = WIDE["vocab_size"]
    weight = (0.02 * torch.randn(vocab, HEAD_WIDTH, generator=generator)).requires_grad_()
    labels = torch.randint(0, vocab, (HEAD_TOKENS,), generator=generator)
    group = torch.distributed.new_group([0], backend="gloo")

    def ours() -> None:
        logprobs, entropy = logprobs_and_entropy(hidden, weight, labels, group)
        torch.autograd.backward((logprobs + 0.01 * entropy).sum())

    def theirs() -> None:
        torch.autograd.backward(cross_entropy(hidden @ weight.t(), labels, reduction="sum"))

    seconds = in_turns(turns, ours=ours, theirs=theirs)
    return Row("time_vs_cross_entropy", seconds["ours"] / seconds["theirs"], "ratio", "1.33")


def main(arguments: list[str]) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args(arguments).turns
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "speed").mkdir()
        (Path(folder) / "wide").mkdir()
        rows = speed_rows(Path(folder) / "speed", turns)
        rows.append(memory_row(Path(folder) / "wide"))
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        rows.append(head_row(max(1, turns // 2)))
        torch.distributed.destroy_process_group()
    report("learner", rows)


if __name__ == "__main__":
    main(sys.argv[1:])
