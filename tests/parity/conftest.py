"""Small Hugging Face models on disk, and what is played over them (`jobs.py`) as fixtures."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.learner.backend import TrainBackend
from agentrl.models.registry import families
from tests.parity import jobs

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


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Callable[..., Any]]:
    """Opens a single-rank backend; the one before is closed, as there can be only one."""
    from tests.parity import states
    from tests.parity.alone import open_alone

    backends: list[Any] = []

    def make(megatron: dict[str, Any], model: str = "qwen3", **flags: Any) -> Any:
        for backend in backends:
            backend.close()
        backends.append(
            open_alone(
                states.config(1, megatron, **flags),
                hf_model(model).directory,
                free_ports(1),
                num_training_steps=6,
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


@pytest.fixture(scope="session")
def follow_script() -> Callable[[TrainBackend, Sequence[Sequence[str]]], None]:
    """`follow` for this process."""
    return jobs.follow


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
        deadline = time.monotonic() + 1800
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
    return jobs.play


@pytest.fixture(scope="session")
def packed() -> Callable[..., MicroBatch]:
    """Makes one micro-batch from lengths and a seed."""
    return jobs.packed


@pytest.fixture(scope="session")
def pg_loss() -> LossFn:
    """`pg` for tests in this process."""
    return jobs.pg


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
