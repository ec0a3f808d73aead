"""The first weights and the reference, where they are not those of the model's own directory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.checkpointing import CheckpointWriter
from agentrl.learner.megatron import MegatronBackend
from tests.parity.alone import open_alone

Open = Callable[..., MegatronBackend]


@pytest.fixture
def opened(hf_model: Any, free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens a single-rank backend; the one before is closed, as there can be only one."""
    backends: list[MegatronBackend] = []

    def make(model: str = "qwen3", **flags: Any) -> MegatronBackend:
        for backend in backends:
            backend.close()
        cfg = RunConfig(actor_num_gpus_per_node=1, lr=1e-2, **flags)
        backends.append(
            open_alone(
                cfg,
                hf_model(model).directory,
                free_ports(1),
                models=load_algorithm(cfg).needs.models,
            )
        )
        return backends[-1]

    yield make
    for backend in backends:
        backend.close()


def test_the_reference_is_that_of_ref_load_a_model_or_a_checkpoint(
    opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    batches = [packed([30, 7], 1)]
    backend = opened()
    (first,) = backend.run("policy", batches)
    backend.step("policy", batches, pg_loss)
    (trained,) = backend.run("policy", batches)
    writer = CheckpointWriter(tmp_path / "kept", backend, run_id="first")
    writer.begin(None)
    writer.save(1, version=1)
    backend.save_hf(tmp_path / "hf")
    assert not torch.equal(first, trained)
    for place in ("kept", "kept/iteration_0000001", "hf"):
        backend = opened(use_kl_loss=True, ref_load=str(tmp_path / place))
        assert torch.equal(backend.run("reference", batches)[0], trained)
        assert torch.equal(backend.run("policy", batches)[0], first)
        backend.step("policy", batches, pg_loss)
        assert torch.equal(backend.run("reference", batches)[0], trained)


def test_the_teacher_is_that_of_opd_teacher_load(
    opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    """Beside a reference, which is the first weights; neither moves."""
    batches = [packed([30, 7], 1)]
    backend = opened()
    (first,) = backend.run("policy", batches)
    backend.step("policy", batches, pg_loss)
    (trained,) = backend.run("policy", batches)
    backend.save_hf(tmp_path)
    backend = opened(use_opd=True, opd_teacher_load=str(tmp_path), use_kl_loss=True)
    for _ in range(2):
        assert torch.equal(backend.run("teacher", batches)[0], trained)
        assert torch.equal(backend.run("reference", batches)[0], first)
        backend.step("policy", batches, pg_loss)


def test_the_first_weights_may_be_those_of_a_hugging_face_model(
    opened: Open, packed: Any, pg_loss: LossFn, tmp_path: Path
) -> None:
    batches = [packed([30, 7], 1)]
    backend = opened()
    backend.step("policy", batches, pg_loss)
    (trained,) = backend.run("policy", batches)
    backend.save_hf(tmp_path)
    assert torch.equal(opened(load=str(tmp_path)).run("policy", batches)[0], trained)


def test_a_reference_of_another_model_is_refused(
    opened: Open, hf_model: Any, tmp_path: Path
) -> None:
    other = str(hf_model("qwen2").directory)
    with pytest.raises(ConfigError, match=r"does not fit its config\.json"):
        opened(use_kl_loss=True, ref_load=other)
    backend = opened("qwen2")
    writer = CheckpointWriter(tmp_path, backend, run_id="first")
    writer.begin(None)
    writer.save(1, version=1)
    with pytest.raises(ConfigError, match="is of another model"):
        opened(use_kl_loss=True, ref_load=str(tmp_path))
