"""`LentMemory`: what models keep on a device, moved to the host and back.

    on the device -> (lay_down) -> on the host -> (take_up) -> on the device, bit for bit

Storages are moved, not tensors: megatron-core's weights and gradients are views of a few large
buffers, and every view is whole again when its storage is. While its storage is away a tensor keeps
its shape and has no data, so nobody may read it. Gradient buffers are not copied, because every
step begins by setting them to zero. The host's copies are page-locked and kept for the next time.
"""

from collections.abc import Iterable
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor

__all__ = ["LentMemory", "gradient_tensors", "optimizer_tensors", "weight_tensors"]


def weight_tensors(stages: Iterable[Any]) -> list[Tensor]:
    """All that a forward pass of these stages reads, wrapped by megatron-core's DDP or not."""
    found: list[Tensor] = []
    for stage in stages:
        is_wrapped = isinstance(stage, DistributedDataParallel)
        found += [parameter.data for parameter in stage.parameters()]
        found += list((stage.module if is_wrapped else stage).buffers())
        found += [b.param_data for b in _buffers(stage) if b.param_data is not None]
    return found


def gradient_tensors(stages: Iterable[Any]) -> list[Tensor]:
    """The gradient buffers of stages in megatron-core's DDP."""
    return [buffer.grad_data for stage in stages for buffer in _buffers(stage)]


def optimizer_tensors(adams: Iterable[Any]) -> list[Tensor]:
    """Weights, gradients and state of torch optimizers."""
    found: list[Tensor] = []
    for adam in adams:
        for group in adam.param_groups:
            for weight in group["params"]:
                found.append(weight.data)
                if weight.is_leaf and weight.grad is not None:
                    found.append(weight.grad)
        for state in adam.state.values():
            found += [value for value in state.values() if torch.is_tensor(value)]
    return found


def _buffers(stage: Any) -> list[Any]:
    is_wrapped = isinstance(stage, DistributedDataParallel)
    return [*stage.buffers, *stage.expert_parallel_buffers] if is_wrapped else []


class LentMemory:
    """Storages that are away now. `kind`: of the device whose memory is lent; what lies elsewhere
    stays where it is."""

    def __init__(self, kind: str = "cuda") -> None:
        self._kind = kind
        self._away: dict[int, tuple[torch.UntypedStorage, int, Tensor | None]] = {}
        self._copies: dict[int, Tensor] = {}

    def lay_down(self, kept: Iterable[Tensor], dropped: Iterable[Tensor] = ()) -> None:
        """Move the storages of `kept` to the host, and free those of `dropped`, whose content
        becomes zero."""
        for key, storage in self._storages(dropped).items():
            self._away[key] = (storage, storage.nbytes(), None)
            storage.resize_(0)
        for key, storage in self._storages(kept).items():
            size = storage.nbytes()
            copy = self._copies.get(key)
            if copy is None or copy.nbytes != size:
                locked = storage.device.type == "cuda"
                copy = torch.empty(size, dtype=torch.uint8, pin_memory=locked)
            self._copies[key] = copy
            copy.untyped_storage().copy_(storage)
            self._away[key] = (storage, size, copy)
            storage.resize_(0)
        if self._kind == "cuda":
            torch.cuda.empty_cache()

    def take_up(self) -> None:
        """Have all of it on the device again."""
        for storage, size, copy in self._away.values():
            storage.resize_(size)
            if copy is None:
                torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).zero_()
            else:
                storage.copy_(copy.untyped_storage())
        if self._away:  # a tensor that is gone leaves no copy behind
            self._copies = {key: self._copies[key] for key in self._away if key in self._copies}
        self._away.clear()

    def _storages(self, tensors: Iterable[Tensor]) -> dict[int, torch.UntypedStorage]:
        """Those that are on the device, each once."""
        found = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device.type == self._kind and storage.nbytes():
                found[storage._cdata] = storage
        return found
