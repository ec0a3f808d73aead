"""Process groups of the learner and the few collectives of its own.

Gloo carries host tensors and, where there is no CUDA, everything; NCCL carries CUDA tensors. Small
facts travel as msgpack bytes on host tensors. Every group has the timeout of
`--distributed-timeout-minutes`, so no collective waits for ever.

    CLOSED -> OPEN (`open_groups`) -> CLOSED (`close_groups`)
"""

import gc
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.embeddings.yarn_rotary_pos_embedding import YarnRotaryEmbedding
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from agentrl.config.megatron import MegatronSettings
from agentrl.errors import EnvironmentSetupError

__all__ = [
    "ReplicaGroup",
    "all_gather_msgpack",
    "all_reduce_sum",
    "broadcast_bytes",
    "close_groups",
    "device_of_rank",
    "gather_context",
    "open_groups",
    "open_replica",
    "share_out",
    "speaks_for_replica",
]


def device_of_rank(rank: int) -> torch.device:
    """The device of a rank: the CPU without CUDA, else one of this host's visible devices."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


def open_groups(
    settings: MegatronSettings,
    *,
    rank: int,
    world_size: int,
    address: str,
    port: int,
    seed: int,
    stages_of_a_rank: int = 1,
) -> None:
    """Join the learner's process groups; all ranks call it. Raises EnvironmentSetupError when the
    others do not come."""
    device = device_of_rank(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(minutes=settings.distributed_timeout_minutes)
    try:
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=_meeting_place(rank, world_size, address, port, timeout),
            rank=rank,
            world_size=world_size,
            timeout=timeout,
        )
    except (RuntimeError, OSError) as error:  # gloo's own are plain RuntimeErrors
        raise EnvironmentSetupError(
            f"learner rank {rank} of {world_size} found no full group at {address}:{port} "
            f"within {timeout}: {error}"
        ) from error
    share_out(settings, seed=seed, stages_of_a_rank=stages_of_a_rank)


def share_out(settings: MegatronSettings, *, seed: int, stages_of_a_rank: int = 1) -> None:
    """Have megatron-core make its groups of the ranks that have met, and its random generators."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=settings.tensor_model_parallel_size,
        pipeline_model_parallel_size=settings.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=stages_of_a_rank if stages_of_a_rank > 1 else None,
        context_parallel_size=settings.context_parallel_size,
        expert_model_parallel_size=settings.expert_model_parallel_size,
        expert_tensor_parallel_size=settings.ranks_of_an_expert,
        distributed_timeout_minutes=settings.distributed_timeout_minutes,
    )
    # Nothing is drawn in training (no dropout), so one generator state per rank is enough: for what
    # a loss of the user's draws.
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed, inference_rng_tracker=True, force_reset_rng=True)


def _meeting_place(
    rank: int, world_size: int, address: str, port: int, timeout: timedelta
) -> TCPStore:
    """Where the ranks find each other, on rank 0. It listens at `address` alone: torch itself would
    listen on every interface, and whoever reaches the store may write to it."""
    listener = socket.create_server((address, port)).detach() if rank == 0 else None
    return TCPStore(
        address,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener,
    )


def close_groups() -> None:
    """Leave all groups; again does nothing. The threads of a group end with the last object that
    holds it: megatron-core's models hold groups and are cycles, and its caches hold rotary
    embeddings that do. It does not reset two of its globals, both
    `_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP`; groups in lists are of features unused here."""
    if dist.is_initialized():
        parallel_state.destroy_model_parallel()
        for name, value in vars(parallel_state).items():
            if isinstance(value, dist.ProcessGroup):
                setattr(parallel_state, name, None)
        dist.destroy_process_group()
        for kind in (RotaryEmbedding, YarnRotaryEmbedding):
            kind.forward.cache_clear()
        gc.collect()


class ReplicaGroup:
    """The ranks that compute the same micro-batches, with a group of their own for what the first
    of them, `number`, tells the others."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup) -> None:
        self.number = ranks[0]
        self.is_source = dist.get_rank() == self.number
        self._group = group

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """`data` of the first rank on every rank of the replica; the others pass None."""
        return _broadcast(data, self.number, self._group)


def open_replica(timeout: timedelta) -> ReplicaGroup | None:
    """That of this rank; None where each rank is one. Collective. `timeout`: of what it tells."""
    replicas: dict[int, list[int]] = {}
    for rank, replica in enumerate(all_gather_msgpack(parallel_state.get_data_parallel_rank())):
        replicas.setdefault(replica, []).append(rank)
    mine = replicas[parallel_state.get_data_parallel_rank()]
    if len(mine) == 1:
        return None
    group, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
        list(replicas.values()), timeout=timeout, backend="gloo"
    )
    return ReplicaGroup(mine, group)


def speaks_for_replica() -> bool:
    """Whether this rank's loss counts: one of the ranks that compute the same micro-batch."""
    return bool(
        parallel_state.is_pipeline_last_stage()
        and parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
    )


def all_gather_msgpack(value: Any) -> list[Any]:
    """`value` of every rank, in the order of ranks."""
    if dist.get_world_size() == 1:
        return [value]
    data = bytearray(msgspec.msgpack.encode(value))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(data, dtype=torch.uint8)
    blocks = [torch.empty_like(mine) for _ in sizes]
    dist.all_gather(blocks, mine)
    return [
        msgspec.msgpack.decode(bytes(block[: int(size)].tolist()))
        for block, size in zip(blocks, sizes, strict=True)
    ]


def broadcast_bytes(data: bytes | None) -> bytes:
    """`data` of global rank 0 on every rank; the others pass None."""
    return _broadcast(data, 0, None)


def _broadcast(data: bytes | None, source: int, group: dist.ProcessGroup | None) -> bytes:
    is_source = dist.get_rank() == source
    if is_source and data is None:
        raise ValueError("the source rank must bring the bytes to broadcast")
    size = torch.tensor([len(data) if data is not None else 0])
    dist.broadcast(size, source, group=group)
    if int(size) == 0:
        return b""
    block = torch.empty(int(size), dtype=torch.uint8)
    if is_source and data is not None:
        block.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(block, source, group=group)
    return block.numpy().tobytes()


def all_reduce_sum(values: Sequence[float]) -> list[float]:
    """Sums over data-parallel ranks in float64."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, group=parallel_state.get_data_parallel_group_gloo())
    return [float(value) for value in total]


class _GatherContext(torch.autograd.Function):
    """All context-parallel ranks' rows on every rank. The loss above is computed by each of them,
    so a rank's own rows have their whole gradient here: backward takes them, and sums nothing."""

    @staticmethod
    def forward(ctx: Any, mine_T: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.rows = slice(group.rank() * len(mine_T), (group.rank() + 1) * len(mine_T))
        parts = [torch.empty_like(mine_T) for _ in range(group.size())]
        dist.all_gather(parts, mine_T.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0][ctx.rows], None


def gather_context(mine_T: Tensor) -> Tensor:
    """Rows of all context-parallel ranks, one rank after the other; differentiable."""
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return mine_T
    gathered_T: Tensor = _GatherContext.apply(mine_T, group)  # type: ignore[no-untyped-call]
    return gathered_T
