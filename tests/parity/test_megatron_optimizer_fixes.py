"""A distributed optimizer's sharded checkpoint continues exactly where it was saved."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from agentrl.config.run import RunConfig
from agentrl.learner.backend import LossFn
from agentrl.learner.megatron import MegatronBackend

METADATA = {
    "distrib_optim_sharding_type": "fully_reshardable",
    "chained_optim_avoid_prefix": True,
}


def opened(directory: Path, port: int) -> MegatronBackend:
    cfg = RunConfig(
        actor_num_gpus_per_node=1, lr=1e-3, megatron={"use_distributed_optimizer": True}
    )
    return MegatronBackend(
        cfg,
        directory,
        rank=0,
        world_size=1,
        master_address="127.0.0.1",
        master_port=port,
        num_training_steps=None,
    )


def sharded(backend: MegatronBackend, *, loading: bool) -> dict[str, Any]:
    from megatron.core import parallel_state  # after MegatronBackend, which prepares the import

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = METADATA | {"dp_cp_group": group}
    model = backend._model.module.sharded_state_dict(metadata=metadata)
    optimizer = backend._optimizer._optimizer.sharded_state_dict(
        model, is_loading=loading, metadata=metadata
    )
    return {"model": model, "optimizer": optimizer}


def test_steps_after_loading_equal_steps_never_interrupted(
    hf_model: Any,
    packed: Any,
    pg_loss: LossFn,
    free_ports: Callable[[int], int],
    tmp_path: Path,
) -> None:
    from megatron.core import dist_checkpointing

    directory = hf_model("Qwen3").directory
    batch = packed([30, 7], 1)
    with closing(opened(directory, free_ports(1))) as backend:
        for _ in range(2):
            backend.step([batch], pg_loss)
        dist_checkpointing.save(sharded(backend, loading=False), str(tmp_path))
        for _ in range(2):
            backend.step([batch], pg_loss)
        wanted = {name: tensor.clone() for name, tensor in backend.hf_tensors()}

    with closing(opened(directory, free_ports(1))) as again:
        state = dist_checkpointing.load(sharded(again, loading=True), str(tmp_path))
        again._model.module.load_state_dict(state["model"])
        again._optimizer._optimizer.load_state_dict(state["optimizer"])
        for _ in range(2):
            again.step([batch], pg_loss)
        found = dict(again.hf_tensors())
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
