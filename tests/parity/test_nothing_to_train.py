"""A step of which no token is trained is not taken: an optimizer that remembers earlier gradients
would move the weights without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.iteration import IterationResult, train_lease
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.metrics import train_metrics
from agentrl.lineage import Lineage
from agentrl.types import VersionRow
from tests.estimators import ESTIMATORS, flags_of
from tests.parity.golden import LEASE, Batch, TableBackend, lineage

MODEL = Path(__file__).resolve().parents[2] / "agentrl" / "envs" / "search_r1" / "model"
#: Iterations after which all tokens of a batch are older than any bound here.
LATER = 20


def train(cfg: RunConfig, backend: Any, *, is_old: bool) -> IterationResult:
    """A lease of tokens that are trained, or of the same tokens when all are too old."""
    batch, algorithm = Batch(1), load_algorithm(cfg)
    if not is_old:
        return train_lease(batch.header, algorithm, backend, lineage(), batch.fetch)
    header = replace(batch.header, number=LEASE + LATER)
    versions = range(LEASE + LATER)
    rows = [VersionRow(v, parent=v - 1 if v else None, iteration=v) for v in versions]
    return train_lease(header, algorithm, backend, Lineage(rows), batch.fetch)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_tokens_that_are_all_masked_are_a_counted_skip_for_each_estimator(name: str) -> None:
    cfg = RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, **flags_of(name))
    backend = TableBackend(1)
    result = train(cfg, backend, is_old=True)
    assert backend.steps == []
    assert not result.skipped  # its groups are done with: nothing was not finite
    metrics, _ = train_metrics(result)
    assert metrics["train/num_skipped_steps"] == 2 * len(result.steps)
    assert metrics["train/num_steps"] == 0
    assert metrics["train/masked_token_share"] == 1.0


def test_adam_moves_no_weight_by_what_it_remembers(free_ports: Callable[[int], int]) -> None:
    cfg = RunConfig(actor_num_gpus_per_node=1, max_tokens_per_gpu=160, lr=1e-3)
    backend = MegatronBackend(
        cfg,
        MODEL,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=free_ports(1),
        num_training_steps=10,
        models=load_algorithm(cfg).needs.models,
    )
    try:
        assert not train(cfg, backend, is_old=False).skipped
        trained = weights(backend)
        train(cfg, backend, is_old=True)
        assert torch.equal(weights(backend), trained)
        assert not train(cfg, backend, is_old=False).skipped
        assert not torch.equal(weights(backend), trained)
    finally:
        backend.close()


def weights(backend: MegatronBackend) -> torch.Tensor:
    return torch.cat([tensor.flatten().clone() for _, tensor in backend.hf_tensors()])
