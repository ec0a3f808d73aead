"""Makes megatron-core's "cuda" mean the CPU on a host that has none; the one place that patches it.

megatron-core names the device "cuda" literally in some forty places. On a host without CUDA,
`install()` answers for it: a torch function mode rewrites the device of every torch call of the
calling thread, and four functions of torch.cuda and megatron-core get their CPU meaning.
On a host with CUDA nothing is replaced but what is wrong there too: one unbound name.

The mode belongs to a thread: the thread that called `install()` is the one that trains.
Refused: any megatron-core but `MCORE_VERSION`, because every line here was checked against it.

    UNINSTALLED -> INSTALLED (per thread for the mode, per process for the rest; never undone)
"""

import importlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from agentrl.errors import EnvironmentSetupError

__all__ = ["MCORE_VERSION", "install"]

MCORE_VERSION = "0.16.1"

log = logging.getLogger(__name__)
_threads = threading.local()


def install() -> None:
    """Prepare this thread for megatron-core; again does nothing.

    Call it before anything of `megatron` is imported: on a CPU host it then also saves the 1.5 s
    that importing torch's compiler takes. Raises EnvironmentSetupError for another version.
    """
    if getattr(_threads, "installed", False):
        return
    _require_version()
    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        _import_without_compiler()
    moe_utils = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    vars(moe_utils).setdefault("te_general_gemm", None)
    if on_cpu:
        _answer_for_cuda()
        _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]
        log.info("no CUDA here: megatron-core %s runs on the CPU", MCORE_VERSION)
    _threads.installed = True


def _require_version() -> None:
    try:
        found = metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        found = "none"
    if found != MCORE_VERSION:
        raise EnvironmentSetupError(
            f"megatron-core {found} is installed, agentrl needs exactly {MCORE_VERSION} "
            f"(its compatibility module is checked against that version): "
            f"pip install megatron-core=={MCORE_VERSION}"
        )


class _CudaMeansCpu(TorchFunctionMode):
    """Every torch call of this thread: device="cuda" becomes "cpu", `x.cuda()` is x, no memory is
    pinned, and `x.type()` gives the CUDA name, which the optimizers compare with."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if not kwargs:
            return func(*args)
        named = dict(kwargs)
        if str(named.get("device")).startswith("cuda"):
            named["device"] = "cpu"
        if named.get("pin_memory"):
            named["pin_memory"] = False
        return func(*args, **named)


def _import_without_compiler() -> None:
    """Import megatron.core with its fused functions left as plain Python: compiling them would need
    a C++ compiler at run time, and decorating them loads all of torch's compiler."""
    if "megatron.core" in sys.modules:
        importlib.import_module("torch._dynamo").config.disable = True
        return
    compile_function = torch.compile
    torch.compile = _leave_uncompiled  # type: ignore[assignment]
    try:
        importlib.import_module("megatron.core")
    finally:
        torch.compile = compile_function


def _leave_uncompiled(function: Any = None, **_options: Any) -> Any:
    return function if function is not None else _leave_uncompiled


def _answer_for_cuda() -> None:
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.synchronize = lambda *_args, **_kwargs: None
    # Activation recomputation saves and restores the generator of the device.
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)
