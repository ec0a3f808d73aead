"""Small Hugging Face models on disk, packed batches for them, a policy-gradient loss, and a short
job over them that any number of ranks can play (worker processes load this file by its path)."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.columns import Column
from agentrl.errors import InfrastructureError
from agentrl.learner.backend import TrainBackend
from agentrl.learner.checkpointing import CopiesState
from agentrl.learner.exchange import SharesRows
from agentrl.models.registry import families

VOCAB = 96


#: GLM-4.5 as its Air is, with groups of experts.
_SIGMOID = {
    **families()["glm4-moe"].tiny,
    "use_qk_norm": False,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "n_group": 4,
    "routed_scaling_factor": 1.5,
    "topk_group": 2,
}


class HFModel(NamedTuple):
    """A transformers model and the directory that holds it."""

    model: Any
    directory: Path


@pytest.fixture(scope="session")
def hf_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], HFModel]:
    """Makes the tiny member of a family of `agentrl.models`, each once. With `-tied` the embedding
    is the head; with `-odd` two data-parallel ranks of a distributed optimizer share a row of a
    tied model; with `-wide` heads are as wide as Qwen3's; with `-window` a token sees 8;
    with `-prime` the vocabulary cannot be shared out evenly; with `-3layers` it has 3; with
    `-4keys` a delta net has 4 key heads, each with two value heads; `-told` is the same model,
    whose trajectories bring the experts of tokens."""
    made: dict[str, HFModel] = {}

    def make(name: str) -> HFModel:
        if name not in made:
            made[name] = _make(name, tmp_path_factory.mktemp(name))
        return made[name]

    return make


def _make(name: str, directory: Path) -> HFModel:
    family, *_ = re.split(r"-(?=odd|tied|wide|window|prime|told|\dlayers|\dkeys)", name)
    wide = {"head_dim": 16} if "wide" in name else {}
    odd = {"hidden_size": 40, "intermediate_size": 56} if "odd" in name else {}
    tied = {"tie_word_embeddings": "tied" in name}
    window = {"sliding_window": 8} if "window" in name else {}
    prime = {"vocab_size": 97} if "prime" in name else {}
    deep = {"num_hidden_layers": int(n[1])} if (n := re.search(r"-(\d)layers", name)) else {}
    keys: dict[str, int] = {}
    if n := re.search(r"-(\d)keys", name):
        keys = {"linear_num_key_heads": int(n[1]), "linear_num_value_heads": 2 * int(n[1])}
    changes = {**odd, **tied, **wide, **window, **prime, **deep, **keys}
    return make_model({**families()[family].tiny, **changes}, directory)


def make_model(config: Mapping[str, Any], directory: Path) -> HFModel:
    """The random model that a config.json describes."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from benchmarks.families import complete, describe

    torch.manual_seed(7)
    kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
    model = kind.from_config(describe(config), attn_implementation="eager")
    model = model.float().eval()
    for name, tensor in model.state_dict().items():
        if "norm" in name or "bias" in name or "sinks" in name:
            tensor.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    complete(config, directory)
    return HFModel(model, directory)


@pytest.fixture(scope="session")
def make_hf_model() -> Callable[[Mapping[str, Any], Path], HFModel]:
    """Makes the random model that a config.json describes."""
    return make_model


@pytest.fixture
def sigmoid() -> dict[str, Any]:
    """config.json of a small model whose router has sigmoid scores, groups of experts and a
    correction bias."""
    return dict(_SIGMOID)


@pytest.fixture(autouse=True)
def _weights_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with a GPU the learner runs there, and what it is compared with on the host."""
    if not torch.cuda.is_available():
        return
    from agentrl.learner.megatron import MegatronBackend

    export = MegatronBackend.hf_tensors
    monkeypatch.setattr(
        MegatronBackend,
        "hf_tensors",
        lambda backend: ((name, tensor.cpu()) for name, tensor in export(backend)),
    )


@pytest.fixture(scope="session")
def free_ports() -> Callable[[int], int]:
    """Finds the first of several consecutive ports that nothing listens on."""

    def find(count: int) -> int:
        for _ in range(100):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                first = int(probe.getsockname()[1])
            if first + count < 65536 and all(map(_is_free, range(first, first + count))):
                return first
        raise OSError(f"no {count} consecutive free ports")

    return find


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def batches(lengths: Sequence[Sequence[int]], seed: int) -> list[MicroBatch]:
    """Micro-batches of random sequences of the given lengths, with the columns `pg` reads. Only
    what it reads is scored."""
    return [_packed(each, seed + index, masked=0.5) for index, each in enumerate(lengths)]


def _packed(lengths: Sequence[int], seed: int, masked: float = 0.0) -> MicroBatch:
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


def play(backend: TrainBackend, target: Path) -> None:
    """Take this rank's part of `STEPS` and of a step that cannot be taken; write to `target`-RANK.*
    the first step's log-probabilities that are read, the last weights and everything else seen."""
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
        found = backend.run("policy", list(own.values()))
        masks = [batch.columns["mask"] for batch in own.values()]
        logprobs |= {k: f * mask for k, f, mask in zip(own, found, masks, strict=True)}
        result = backend.step("policy", list(own.values()), pg)
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
    batch = _packed(LONG, 5)
    (logprobs,) = backend.run("policy", [batch])
    assert not backend.step("policy", [batch], pg).skipped
    found = {name: each.main_grad.clone() for name, each in backend._model.named_parameters()}
    return {"logprobs": logprobs, **found}


def follow(backend: TrainBackend, script: Sequence[Sequence[str]]) -> None:
    """Do what each [verb, argument] says: `step` NUMBER, `learn` NUMBER (a step of the critic),
    `values` FILE-RANK gets those of the critic, `gradients` FILE-RANK those of a step on `LONG`,
    `renew` MODEL, `save` or `load` DIRECTORY, `copy` and `write` to save there in two steps,
    `replica` who speaks to this rank's replica to FILE-RANK, `export` the weights to FILE-RANK,
    or `fail` to save where rank 1 cannot write, its error to FILE-RANK."""
    rank = torch.distributed.get_rank()
    copy: Any = None
    for verb, argument in script:
        match verb:
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
            case "fail":
                Path(argument).mkdir(parents=True, exist_ok=True)
                (Path(argument) / "__1_0.distcp").touch()
                try:
                    backend.save_state(Path(argument))
                except InfrastructureError as error:
                    Path(f"{argument}-{rank}").write_text(str(error))
            case _:
                raise ValueError(verb)


@pytest.fixture(scope="session")
def follow_script() -> Callable[[TrainBackend, Sequence[Sequence[str]]], None]:
    """`follow` for this process."""
    return follow


@pytest.fixture(scope="session")
def run_ranks() -> Callable[[Path, int, list[dict[str, Any]]], None]:
    """Plays jobs (`worker.py`) on real processes, which share their slow start; raises with what
    they said when one fails."""

    def run(home: Path, size: int, jobs: list[dict[str, Any]]) -> None:
        if 0 < torch.cuda.device_count() < size:
            pytest.skip(f"{size} ranks, and {torch.cuda.device_count()} GPU for them")
        worker = Path(__file__).with_name("worker.py")
        orders = home / f"jobs-of-{size}.json"
        orders.write_text(json.dumps(jobs))
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        logs = [home / f"rank-{rank}-of-{size}.log" for rank in range(size)]
        with ExitStack() as files:
            processes = [
                subprocess.Popen(
                    [sys.executable, str(worker), str(rank), str(orders)],
                    env=environment,
                    stdout=files.enter_context(logs[rank].open("w")),
                    stderr=subprocess.STDOUT,
                )
                for rank in range(size)
            ]
        deadline = time.monotonic() + 500
        try:
            while any(process.poll() is None for process in processes):
                said = "\n".join(log.read_text()[-3000:] for log in logs)
                assert all(process.poll() in (None, 0) for process in processes), said
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for process, log in zip(processes, logs, strict=True):
            assert process.returncode == 0, log.read_text()[-4000:]

    return run


@pytest.fixture(scope="session")
def play_job() -> Callable[[TrainBackend, Path], None]:
    """`play` for this process."""
    return play


@pytest.fixture(scope="session")
def packed() -> Callable[..., MicroBatch]:
    """Makes one micro-batch from lengths and a seed."""
    return _packed


@pytest.fixture(scope="session")
def pg_loss() -> LossFn:
    """`pg` for tests in this process."""
    return pg


@pytest.fixture(scope="session")
def hf_scores() -> Callable[[Any, MicroBatch], tuple[Tensor, Tensor]]:
    """Log-probabilities and entropies of a transformers model, one sequence at a time."""

    def score(model: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs, entropies = [], []
        sizes = batch.cu_seqlens.diff().tolist()
        for tokens, labels in zip(
            torch.split(batch.tokens_T, sizes), torch.split(batch.labels_T, sizes), strict=True
        ):
            log_p = model(tokens[None]).logits[0].log_softmax(-1)
            logprobs.append(log_p.gather(-1, labels[:, None])[:, 0])
            entropies.append(-(log_p.exp() * log_p).sum(-1))
        return torch.cat(logprobs), torch.cat(entropies)

    return score
