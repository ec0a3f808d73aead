"""Every family on a GPU: its tiny member scores and learns as transformers does on the CPU."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.rows import LossFn
from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import families
from tests.parity.alone import open_alone

Open = Callable[[Path, bool], MegatronBackend]
#: Mean and largest difference of a log-probability, in nats. In bfloat16 a router may choose
#: another expert.
LIMITS = {False: (1e-6, 2e-5), True: (0.02, 0.5)}


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, bf16: bool) -> MegatronBackend:
        cfg = RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron={"bf16": bf16})
        opened.append(open_alone(for_device(cfg, "cuda"), directory, free_ports(1)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*families(), "mistral-window"])
def test_a_family_scores_as_transformers_on_the_cpu_and_learns(
    name: str,
    bf16: bool,
    hf_model: Any,
    packed: Any,
    hf_scores: Any,
    pg_loss: LossFn,
    open_backend: Open,
) -> None:
    model, directory = hf_model(name)
    backend = open_backend(directory, bf16)
    batches = [packed([30, 7, 19, 1], 1), packed([64], 2)]
    with torch.no_grad():
        wanted = torch.cat([hf_scores(model, batch)[0] for batch in batches])
    before = torch.cat(backend.run("policy", batches))
    differences = (before - wanted).abs()
    mean, largest = LIMITS[bf16]
    assert float(differences.mean()) < mean
    assert float(differences.max()) < largest
    first, second = (backend.step("policy", batches, pg_loss) for _ in range(2))
    assert not first.skipped
    assert not second.skipped
    after = torch.cat(backend.run("policy", batches))
    assert after.isfinite().all()
    assert not torch.equal(after, before)
