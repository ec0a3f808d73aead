"""Learners whose states are saved and loaded: settings, and how two states are compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as load_by_torch

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend

DISTRIBUTED = {"use_distributed_optimizer": True}
OVERLAP = DISTRIBUTED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
TENSOR = {"tensor_model_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
EXPERT = {"expert_model_parallel_size": 2}
PIPELINE = {"pipeline_model_parallel_size": 2}
TWICE = PIPELINE | {"num_virtual_stages_per_pipeline_rank": 2}
LAST = PIPELINE | {"decoder_last_pipeline_num_layers": 2}
CONTEXT = {"context_parallel_size": 2}
ODD = "qwen3-tied-odd"

Tensors = dict[str, Tensor]
Open = Callable[..., MegatronBackend]
Script = list[tuple[str, str]]


def config(ranks: int, megatron: dict[str, Any], **flags: Any) -> RunConfig:
    settings = {"lr": 1e-3, "weight_decay": 0.1, "clip_grad": 0.5, "lr_warmup_iters": 3} | flags
    return RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron, **settings)


def weights(backend: MegatronBackend) -> Tensors:
    return {name: tensor.clone() for name, tensor in backend.hf_tensors()}


def wholes(directory: Path) -> Tensors:
    """Every whole tensor of a state, by torch's own loader."""
    reader = FileSystemReader(directory)
    stored: dict[str, Any] = dict(reader.read_metadata().state_dict_metadata)
    found = {
        key: torch.empty(facts.size, dtype=facts.properties.dtype) for key, facts in stored.items()
    }
    load_by_torch(dict(found), storage_reader=reader, no_dist=True)
    return found


def are_equal(one: Tensors, other: Tensors) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def apart(one: Tensors, other: Tensors) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)
