"""`LiveBytes`: the bytes of the tensors that are alive in a block, and their peak.

Every storage that an operation gives is counted until the last tensor on it is gone, which a weak
reference tells. Tensors with and without data count alike. What an allocator keeps beside them, and
what a kernel takes while it runs, is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`kind_of` names what a new tensor is, until `mark` does. `peak`: the most bytes that were
    alive at once since `forget_peak`, by kind."""

    def __init__(self, kind_of: Callable[[Tensor], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kind_of = kind_of
        self._alive: dict[int, tuple[str, int]] = {}
        self._marked: set[int] = set()
        self._now: Counter[str] = Counter()
        self._total = self._most = 0
        self.peak: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch loads its compiler, to keep it from compiling this

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def forget_peak(self) -> None:
        """Begin again at what is alive now."""
        self._most, self.peak = self._total, dict(self._now)

    def mark(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Name what they lie in, if it was seen and has no mark yet."""
        for tensor in tensors:
            key = id(tensor.untyped_storage())
            if key in self._alive and key not in self._marked:
                before, size = self._alive[key]
                self._now[before] -= size
                self._now[kind] += size
                self._alive[key] = (kind, size)
                self._marked.add(key)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._alive:
            return
        kind, size = self._kind_of(tensor), storage.nbytes()
        self._alive[key] = (kind, size)
        weakref.finalize(storage, self._gone, key).atexit = False
        self._now[kind] += size
        self._total += size
        if self._total > self._most:
            self._most, self.peak = self._total, dict(self._now)

    def _gone(self, key: int) -> None:
        kind, size = self._alive.pop(key)
        self._marked.discard(key)
        self._now[kind] -= size
        self._total -= size
