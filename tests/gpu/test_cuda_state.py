"""What a learner keeps on a GPU: the same steps again, from a checkpoint, and with the optimizer's
part of it on the host."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone
from tests.parity.states import apart

Open = Callable[..., MegatronBackend]
OFFLOADED = {
    "optimizer_cpu_offload": True,
    "overlap_cpu_optimizer_d2h_h2d": True,
    "use_precision_aware_optimizer": True,
}


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    opened: list[MegatronBackend] = []

    def make(directory: Path, **megatron: Any) -> MegatronBackend:
        for one in opened:
            one.close()
        settings = {"deterministic_mode": True} | megatron
        cfg = RunConfig(actor_num_gpus_per_node=1, lr=1e-3, megatron=settings)
        opened.append(open_alone(for_device(cfg, "cuda"), directory, free_ports(1)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


@pytest.fixture
def batches(packed: Any) -> list[list[MicroBatch]]:
    """Of four steps."""
    return [[packed([30, 7, 19], step), packed([64], 10 + step)] for step in range(4)]


def weights(backend: MegatronBackend) -> dict[str, Tensor]:
    return {name: tensor.float().cpu().clone() for name, tensor in backend.hf_tensors()}


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe"])
def test_a_run_that_goes_on_takes_the_steps_of_one_that_never_stopped(
    name: str, hf_model: Any, batches: Any, pg_loss: LossFn, open_backend: Open, tmp_path: Path
) -> None:
    directory = hf_model(name).directory
    backend = open_backend(directory)
    for step in batches[:2]:
        backend.step("policy", step, pg_loss)
    backend.save_state(tmp_path)
    for step in batches[2:]:
        backend.step("policy", step, pg_loss)
    wanted = weights(backend)
    again = open_backend(directory)
    again.load_state(tmp_path)
    for step in batches[2:]:
        again.step("policy", step, pg_loss)
    assert apart(weights(again), wanted) == 0.0


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_an_optimizer_on_the_host_takes_the_same_steps(
    fraction: float, hf_model: Any, batches: Any, pg_loss: LossFn, open_backend: Open
) -> None:
    directory = hf_model("qwen3").directory
    found = []
    for settings in ({}, OFFLOADED | {"optimizer_offload_fraction": fraction}):
        backend = open_backend(directory, **settings)
        before = weights(backend)
        norms = [backend.step("policy", step, pg_loss).grad_norm for step in batches]
        found.append((norms, weights(backend)))
        assert apart(before, found[-1][1]) > 1e-3
    (norms, wanted), (others, mine) = found
    assert others == pytest.approx(norms, rel=1e-2)
    assert apart(mine, wanted) < 2e-3
