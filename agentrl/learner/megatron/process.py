"""What a rank's process is told once, when it begins.

`--deterministic-mode`: every operation of the learner gives the same bits in every run. On the CPU
that is so anyway, for one number of threads; torch then refuses an operation that has no such form.
On CUDA the matrix products and the collectives need a word before they begin; one that the user has
said is kept, if it is one of those that Megatron takes.

Memory of the host: what a step frees stays with the process, for the next step. A step on a CPU
allocates tensors of tens of megabytes. The C library gives each back to the kernel when it is
freed, and every page of the next one is a fault: a seventh of a step's time was that.
"""

import ctypes
import logging
import os

import torch

from agentrl.errors import ConfigError

__all__ = ["keep_freed_memory", "set_deterministic"]

log = logging.getLogger(__name__)

_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
#: Parameters of glibc's mallopt (malloc.h): the top of the heap is trimmed above this many bytes,
#: and larger allocations than this are mapped, each alone.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = 2**31 - 1, 2**28


def set_deterministic(mode: bool) -> None:
    """Switch this process over, before its groups are open. Raises ConfigError for an NCCL_ALGO
    that sums in an order of its own."""
    if mode and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if (algorithm := os.environ.setdefault("NCCL_ALGO", "Ring")) not in _ALGORITHMS:
            raise ConfigError(
                f"--deterministic-mode cannot have NCCL_ALGO={algorithm} in the environment; "
                f"choose from {', '.join(_ALGORITHMS)}"
            )
    if mode != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(mode)


def keep_freed_memory() -> bool:
    """Ask the C library to keep it; whether it does. Another one than glibc is left alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    is_kept = all([mallopt(_TRIM_THRESHOLD, _NEVER), mallopt(_MMAP_THRESHOLD, _LARGEST)])
    log.debug("freed memory is %s", "kept" if is_kept else "given back")
    return is_kept
