"""What a rank of a test does: packed batches, losses, and a short job or a script over them. Any
number of ranks can play it."""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from agentrl.algorithms.rows import TEMPERATURES, MicroBatch, Outputs
from agentrl.columns import Column
from agentrl.errors import InfrastructureError
from agentrl.learner.backend import TrainBackend
from agentrl.learner.checkpointing import CopiesState
from agentrl.learner.lease_client import SharesRows

VOCAB = 96
#: Seconds that a pipe has no reader: more than a collective waits there.
_STALL_S = 20.0


def batches(lengths: Sequence[Sequence[int]], seed: int) -> list[MicroBatch]:
    """Micro-batches of random sequences of the given lengths, with the columns `pg` reads. Only
    what it reads is scored."""
    return [packed(each, seed + index, masked=0.5) for index, each in enumerate(lengths)]


def packed(lengths: Sequence[int], seed: int, masked: float = 0.0) -> MicroBatch:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    tokens = torch.randint(0, VOCAB, (total,), generator=generator)
    cu = torch.tensor([0, *lengths]).cumsum(0)
    labels = tokens.roll(-1)
    labels[cu[1:] - 1] = 0
    mask = torch.ones(total)
    mask[cu[1:] - 1] = 0.0
    mask *= torch.rand(total, generator=generator) >= masked
    return MicroBatch(
        tokens_T=tokens,
        labels_T=labels,
        positions_T=torch.cat([torch.arange(n) for n in lengths]),
        cu_seqlens=cu.int(),
        max_seqlen=max(lengths),
        columns={
            "mask": mask,
            "advantages": torch.randn(total, generator=generator),
            "mu": -4.0 + 0.3 * torch.randn(total, generator=generator),
            "weights": torch.full((total,), 1 / 50.0),
            **({"scored": mask.bool()} if masked else {}),
        },
    )


def pg(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    """A clipped policy-gradient loss with an entropy bonus over a fixed denominator."""
    ratio = (out.logprobs_T - batch.columns["mu"]).exp()
    advantages = batch.columns["advantages"]
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.5, 2.0) * advantages)
    mask = batch.columns["mask"]
    value = -((gain + 0.05 * out.entropy_T) * mask).sum() / 50.0
    return value, {"loss": value.detach(), "custom_tokens": mask.sum()}


def nan_pg(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss whose gradient is not a number."""
    value, metrics = pg(batch, out)
    return value * torch.nan, metrics


def value(batch: MicroBatch, out: Outputs) -> tuple[Tensor, dict[str, Tensor]]:
    """A critic's squared distance from column `mu` over a fixed denominator."""
    assert out.values_T is not None
    distance = (out.values_T - batch.columns["mu"]).square() * batch.columns["mask"]
    return distance.sum() / 50.0, {"value_loss": distance.detach().sum() / 50.0}


#: Micro-batches of two steps by data-parallel share: unequal counts, then a share of none.
STEPS: list[list[list[list[int]]]] = [
    [[[30, 7], [19], [5, 5, 5]], [[11, 23]]],
    [[[40, 2], [9]], []],
]


def with_routes(batch: MicroBatch, columns: Sequence[Column], seed: str) -> MicroBatch:
    """With random routes, as an engine might have told them: those of every fifth token are
    unknown."""
    generator = torch.Generator().manual_seed(sum(seed.encode()))
    found = dict(batch.columns)
    for column in columns:
        layers, topk = column.shape
        orders = torch.rand(len(batch.tokens_T), layers, 4, generator=generator).argsort(-1)
        found[column.name] = orders[..., :topk].to(torch.uint8)
        found[column.name][::5] = int(column.fill)
    return replace(batch, columns=found)


def with_temperatures(batch: MicroBatch) -> MicroBatch:
    """With a temperature for each sequence, as parts of a mixture have them."""
    sizes = batch.cu_seqlens.diff()
    heat_T = (0.6 + 0.3 * torch.arange(len(sizes))).repeat_interleave(sizes)
    return replace(batch, columns={**batch.columns, TEMPERATURES: heat_T})


def play(backend: TrainBackend, target: Path) -> None:
    """Take this rank's part of `STEPS` and of a step that cannot be taken; write to `target`-RANK.*
    the first step's log-probabilities that are read, the last weights and everything else seen;
    and to `target`-first the state after the first step."""
    seen: dict[str, Any] = {"results": []}
    logprobs: dict[str, Tensor] = {}
    for step, shares in enumerate(STEPS):
        own = {
            f"{step}.{share}.{index}": batch
            for share, lengths in enumerate(shares)
            for index, batch in enumerate(batches(lengths, 100 * step + 10 * share))
            if share % backend.data_parallel_size == backend.data_parallel_rank
        }
        own = {name: with_routes(batch, backend.columns, name) for name, batch in own.items()}
        if step > 0:
            own = {name: with_temperatures(batch) for name, batch in own.items()}
        found = backend.run("policy", list(own.values()))
        masks = [batch.columns["mask"] for batch in own.values()]
        logprobs |= {k: f * mask for k, f, mask in zip(own, found, masks, strict=True)}
        result = backend.step("policy", list(own.values()), pg)
        if step == 0:
            first = Path(f"{target}-first")
            first.mkdir(exist_ok=True)
            backend.save_state(first)
        seen["results"].append([result.skipped, result.grad_norm, result.metrics])
    seen["nan_skipped"] = backend.step("policy", list(own.values()), nan_pg).skipped
    seen["sum"] = backend.all_reduce_sum([backend.data_parallel_rank + 1.0, 0.5])
    seen["ranks"] = backend.all_gather(torch.distributed.get_rank())
    seen["bytes"] = list(backend.broadcast_bytes(b"lease" if backend.is_source else None))
    seen["is_source"] = backend.is_source
    weights = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    rank = torch.distributed.get_rank()
    save_file(weights, f"{target}-{rank}.weights")
    save_file(logprobs, f"{target}-{rank}.logprobs")
    Path(f"{target}-{rank}.json").write_text(json.dumps(seen))
    backend.save_hf(Path(f"{target}-saved"))


def _own(backend: TrainBackend, number: int) -> dict[str, MicroBatch]:
    """This rank's micro-batches of that step, by name."""
    return {
        f"{share}.{index}": batch
        for share, lengths in enumerate(STEPS[number % len(STEPS)])
        for index, batch in enumerate(batches(lengths, 1000 + 100 * number + 10 * share))
        if share % backend.data_parallel_size == backend.data_parallel_rank
    }


#: Sequences of several chunks of a delta net, of which two ranks share none equally.
LONG = [65, 3, 502, 66, 130]


def gradients(backend: Any) -> dict[str, Tensor]:
    """Log-probabilities of `LONG` and, by parameter of this rank, the gradient of a step on it."""
    batch = packed(LONG, 5)
    (logprobs,) = backend.run("policy", [batch])
    assert not backend.step("policy", [batch], pg).skipped
    found = {name: each.main_grad.clone() for name, each in backend._model.named_parameters()}
    return {"logprobs": logprobs, **found}


def follow(backend: TrainBackend, script: Sequence[Sequence[str]]) -> None:
    """Do what each [verb, argument] says: `score` NUMBER (a pass over the micro-batches of that
    step), `step` NUMBER, `learn` NUMBER (a step of the critic),
    `values` FILE-RANK gets those of the critic, `gradients` FILE-RANK those of a step on `LONG`,
    `renew` MODEL, `save` or `load` DIRECTORY, `copy` and `write` to save there in two steps,
    `replica` who speaks to this rank's replica to FILE-RANK, `export` the weights to FILE-RANK,
    or to FILE-RANK the error of a save where rank 1 cannot write (`fail`), or only after a
    collective would have given up (`stall`)."""
    rank = torch.distributed.get_rank()
    copy: Any = None
    for verb, argument in script:
        match verb:
            case "score":
                backend.run("policy", list(_own(backend, int(argument)).values()))
            case "step":
                own = list(_own(backend, int(argument)).values())
                assert not backend.step("policy", own, pg).skipped
            case "learn":
                own = list(_own(backend, int(argument)).values())
                assert not backend.step("critic", own, value).skipped
            case "values":
                named = _own(backend, 0)
                found = backend.run("critic", list(named.values()))
                save_file(dict(zip(named, found, strict=True)), f"{argument}-{rank}")
            case "gradients":
                save_file(gradients(backend), f"{argument}-{rank}")
            case "save":
                Path(argument).mkdir(parents=True, exist_ok=True)
                backend.save_state(Path(argument))
            case "replica":
                replica = backend.replica if isinstance(backend, SharesRows) else None
                mine = b"%d" % rank if replica is not None and replica.is_source else None
                said = None if replica is None else replica.broadcast_bytes(mine).decode()
                Path(f"{argument}-{rank}").write_text(json.dumps(said))
            case "copy":
                Path(argument).mkdir(parents=True, exist_ok=True)
                assert isinstance(backend, CopiesState)
                copy = backend.copy_state()
            case "write":
                with ThreadPoolExecutor(1) as threads:
                    part = threads.submit(copy.write, Path(argument)).result()
                copy.join(Path(argument), backend.all_gather(part))
            case "load":
                backend.load_state(Path(argument))
            case "renew":
                backend.renew(argument)
            case "export":
                weights = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
                save_file(weights, f"{argument}-{rank}")
            case "fail" | "stall":
                Path(argument).mkdir(parents=True, exist_ok=True)
                if verb == "fail":
                    (Path(argument) / "__1_0.distcp").touch()
                elif rank == 1:
                    pipe = Path(argument) / "rng_00001.msgpack"
                    os.mkfifo(pipe)
                    Timer(_STALL_S, pipe.read_bytes).start()
                try:
                    backend.save_state(Path(argument))
                except InfrastructureError as error:
                    Path(f"{argument}-{rank}").write_text(str(error))
            case _:
                raise ValueError(verb)
