"""A learner of one process, and the same steps by torch on the transformers model to compare
with."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.models.registry import open_model
from tests.parity.alone import open_alone

LR, DECAY, CLIP = 1e-3, 0.1, 0.5
BETAS = (0.8, 0.95)
Open = Callable[..., MegatronBackend]


@pytest.fixture
def open_backend(free_ports: Callable[[int], int]) -> Iterator[Open]:
    """Opens one single-rank backend and closes it after the test."""
    opened: list[MegatronBackend] = []

    def make(
        directory: Path, megatron: dict[str, Any] | None = None, **flags: Any
    ) -> MegatronBackend:
        settings: dict[str, Any] = {"lr": LR, "weight_decay": DECAY, "clip_grad": CLIP}
        settings |= {"adam_beta1": BETAS[0], "adam_beta2": BETAS[1]} | flags
        cfg = RunConfig(actor_num_gpus_per_node=1, megatron=megatron or {}, **settings)
        backend = open_alone(cfg, directory, free_ports(1), models=load_algorithm(cfg).needs.models)
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.close()


def trained(directory: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those that a layer here has."""
    is_passenger = open_model(directory, None).is_passenger
    return {name: tensor for name, tensor in tensors.items() if not is_passenger(name)}


def hf_weights(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def torch_steps(
    model: Any, steps: list[list[MicroBatch]], loss_fn: LossFn, hf_scores: Any
) -> tuple[dict[str, Tensor], list[float]]:
    """AdamW with clipping on a copy of the transformers model: its weights and gradient norms."""
    model = copy.deepcopy(model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=DECAY, betas=BETAS)
    norms = []
    for batches in steps:
        optimizer.zero_grad()
        for batch in batches:
            torch.autograd.backward(loss_fn(batch, Outputs(*hf_scores(model, batch)))[0])
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    return hf_weights(model), norms
