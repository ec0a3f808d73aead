"""What makes a step fast on a GPU where neither Transformer Engine nor Apex is installed.

    compiled_on_cuda   a function of tensors becomes one kernel (torch's compiler)
    add_product        a matrix product is added to float32 sums by the product's own kernel
    WeightGradients    the same under the name by which megatron-core asks Apex for it
    fuse_adam          AdamW in one kernel for many weights
    use_flash_attention   packed sequences attend by a FlashAttention that is a package of its own

Without a C compiler, which Triton needs, functions stay as they are, and a warning says so once.
On a CPU nothing here changes anything.
"""

import functools
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl

from agentrl.errors import EnvironmentSetupError

__all__ = [
    "WeightGradients",
    "add_product",
    "can_compile",
    "compiled_on_cuda",
    "fuse_adam",
    "use_flash_attention",
]

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


def compiled_on_cuda(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which torch compiles at its first call in a process that has a GPU. Its sizes may
    differ from call to call."""
    compiled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not can_compile():
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        return compiled[0](*args, **kwargs)

    return call


@functools.cache
def can_compile() -> bool:
    """Whether torch compiles functions for a GPU here."""
    if not torch.cuda.is_available():
        return False
    names = [os.environ.get("CC") or "cc", "gcc", "clang"]
    if any(map(shutil.which, names)):
        return True
    log.warning(
        "there is no C compiler here (%s), so functions of the learner are not compiled for the "
        "GPU and a step takes longer; install gcc, or name another in CC",
        ", ".join(names),
    )
    return False


def add_product(sums_MN: Tensor, left_MK: Tensor, right_KN: Tensor) -> None:
    """sums += left @ right in place, in the type of `sums`."""
    if sums_MN.dtype == left_MK.dtype:
        sums_MN.addmm_(left_MK, right_KN)
    elif left_MK.is_cuda and torch.cuda.is_available():  # a rehearsal says so without a GPU
        torch.addmm(sums_MN, left_MK, right_KN, out_dtype=sums_MN.dtype, out=sums_MN)
    else:
        sums_MN.add_(left_MK @ right_KN)


class WeightGradients:
    """Apex's module of this task, as megatron-core's linear layers call it."""

    @staticmethod
    def wgrad_gemm_accum_fp32(input_TK: Tensor, grad_TN: Tensor, sums_NK: Tensor) -> None:
        """sums += grad.T @ input, in float32."""
        add_product(sums_NK, grad_TN.t(), input_TK)

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def fuse_adam(adams: Iterable[Any]) -> None:
    """Have torch's AdamW update many weights of a GPU by one kernel, from the first step on."""
    for adam in adams:
        for group in adam.param_groups:
            if isinstance(adam, torch.optim.AdamW) and all(w.is_cuda for w in group["params"]):
                group["fused"] = True


def use_flash_attention(version: str) -> None:
    """Have `torch.nn.attention.varlen` use that FlashAttention in this process; 2 is torch's own.

    Raises EnvironmentSetupError if its package cannot be used.
    """
    if version == "2":
        return
    try:
        activate_flash_attention_impl(f"FA{version}")
    except (ImportError, RuntimeError, ValueError) as error:
        raise EnvironmentSetupError(
            f"--flash-attention {version}: its package cannot be used here ({error}); install it, "
            "or leave the flag out"
        ) from error
    log.info("packed sequences attend by FlashAttention %s", version)
