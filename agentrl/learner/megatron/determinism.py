"""`--deterministic-mode`: every operation of the learner gives the same bits in every run.

On the CPU that is so anyway, for one number of threads; torch then refuses an operation that has
no such form. On CUDA the matrix products and the collectives need a word before they begin; one
that the user has said is kept, if it is one of those that Megatron takes.
"""

import os

import torch

from agentrl.errors import ConfigError

__all__ = ["set_deterministic"]

_ALGORITHMS = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")


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
