"""Buckets of weights in memory that this process shares with engines of its host.

SGLang's `update_weights_from_tensor` takes a pickle of the few types that it allows. In the pickle
a tensor may be a handle: the name of shared memory. The reader opens that memory and copies from it
to its parameters. It is host memory on a GPU host too.

torch keeps such memory as a file of `/dev/shm` with a count of its readers, in a process of its own
(`torch_shm_manager`), which removes the files of a process that is gone. Nothing here imports
SGLang.
"""

import pickle
from types import SimpleNamespace
from typing import Any

import torch
from torch.multiprocessing.reductions import (
    rebuild_storage_filename,
    rebuild_tensor,
    rebuild_typed_storage,
)

from agentrl.errors import PushError
from agentrl.serving.buckets import Bucket, new_buffer

__all__ = ["handle_of", "shared_buffer"]


def shared_buffer(size: int) -> torch.Tensor:
    """`size` bytes, uint8, that other processes of this host can open by a handle. Raises PushError
    where the host has no space for them."""
    buffer = new_buffer(size)
    try:
        buffer.untyped_storage()._share_filename_cpu_()
    except RuntimeError as error:
        raise PushError(
            f"{size} bytes of weights do not fit into the memory that processes of this host share "
            f"(/dev/shm): {error}. Give it more (docker run --shm-size), or send less at once "
            "(--update-weight-buffer-size)"
        ) from error
    return buffer


def handle_of(bucket: Bucket, num_readers: int) -> bytes:
    """A pickle with which each of `num_readers` processes opens a bucket that starts a
    `shared_buffer`. Every reader has to unpickle it once. Raises PushError for any other bucket."""
    size, storage = bucket.payload.nbytes, bucket.payload.untyped_storage()
    if not (storage.is_shared() and bucket.payload.storage_offset() == 0):
        raise PushError("engines cannot read this bucket: it is not in a shared buffer")
    for _ in range(num_readers):
        storage._shared_incref()  # type: ignore[no-untyped-call]  # each reader takes one back
    name = storage._share_filename_cpu_()
    opened = _Call(rebuild_storage_filename, torch.UntypedStorage, *name)
    typed = _Call(rebuild_typed_storage, opened, torch.uint8)
    flat = _Call(rebuild_tensor, torch.Tensor, typed, (0, (size,), (1,), False))
    return pickle.dumps({"flattened_tensor": flat, "metadata": _layout(bucket)})


class _Call:
    """Unpickled, it becomes what `function` returns for `values`."""

    def __init__(self, function: Any, *values: Any) -> None:
        self._parts = (function, values)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self._parts


def _layout(bucket: Bucket) -> list[SimpleNamespace]:
    """Where each tensor lies, by SGLang's names."""
    found, start = [], 0
    for name, dtype_name, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
        dtype: torch.dtype = getattr(torch, dtype_name)
        end = start + torch.Size(shape).numel() * dtype.itemsize
        place = {"start_idx": start, "end_idx": end, "numel": end - start}
        found.append(SimpleNamespace(name=name, shape=torch.Size(shape), dtype=dtype, **place))
        start = end
    return found
