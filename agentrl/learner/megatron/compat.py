"""Makes megatron-core's "cuda" mean the CPU on a host that has none; the one place that patches it.

megatron-core names the device "cuda" literally in some forty places. On a host without CUDA,
`install()` answers for it: a torch function mode rewrites the device of every torch call of the
calling thread, and a few functions of torch.cuda and megatron-core get their CPU meaning.
On a host with CUDA nothing is replaced but what is wrong there too (one unbound name, two modules
that take Transformer Engine for installed when it is not, one that recomputes in FP8 unless it is
told not to, and routers that are told what is padding) and what is slow: the rotation of packed
sequences, and weight gradients without Apex.

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
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agentrl.errors import EnvironmentSetupError
from agentrl.learner.megatron.gpu_kernels import WeightGradients
from agentrl.learner.megatron.rotary import rotate_packed

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
    engine = importlib.import_module("megatron.core.extensions.transformer_engine")
    latent: Any = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    latent.HAVE_TE = engine.HAVE_TE
    if not engine.HAVE_TE:
        settings: Any = importlib.import_module("megatron.core.optimizer.optimizer_config")
        settings.is_te_min_version = lambda *_args, **_kwargs: False  # it compares with None
    router: Any = importlib.import_module("megatron.core.transformer.moe.router")
    router.TopKRouter._apply_expert_bias = _count_tokens
    router.get_tokens_per_expert_and_token_count = _shared_out(
        router.get_tokens_per_expert_and_token_count
    )
    rope: Any = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    rope._apply_rotary_pos_emb_thd = rotate_packed
    if not on_cpu:
        layers: Any = importlib.import_module("megatron.core.tensor_parallel.layers")
        if not layers._grad_accum_fusion_available:
            layers.fused_weight_gradient_mlp_cuda = WeightGradients
            layers._grad_accum_fusion_available = True
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random.CheckpointWithoutOutput.__init__.__defaults__ = (None,)  # its False means yes
    if on_cpu:
        _answer_for_cuda()
        _CudaMeansCpu().__enter__()  # type: ignore[no-untyped-call]
        log.info("no CUDA here: megatron-core %s runs on the CPU", MCORE_VERSION)
    _threads.installed = True


def _count_tokens(router: Any, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
    """megatron-core's own takes the mask of tokens, [T], for one of experts."""
    if router.enable_expert_bias and torch.is_grad_enabled():
        with torch.no_grad():
            if padding_mask is not None:
                routing_map = routing_map & ~padding_mask[:, None]
            router.local_tokens_per_expert += routing_map.sum(dim=0)


def _shared_out(count: Callable[..., Any]) -> Callable[..., Any]:
    """megatron-core multiplies the auxiliary loss by the tokens of a rank, which are unequal
    without padding, and divides it by those of a micro-batch, which may be none. Ranks that share
    a micro-batch have equal shares of its loss."""

    def counted(routing_map: Tensor, reduce_group: Any, **named: Any) -> tuple[Any, Any, Any]:
        per_expert, local, total = count(routing_map, reduce_group, **named)
        if named.get("with_padding_mask"):
            return per_expert, total / reduce_group.size(), total.clamp(min=1)
        return per_expert, local, total

    return counted


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
    # Counts of tokens by expert are copied to the host on a stream of the device.
    dispatchers: Any = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")
    dispatcher = dispatchers.MoEAlltoAllTokenDispatcher
    dispatcher.cuda_dtoh_stream = "none"
    dispatcher._maybe_dtoh_and_synchronize = _counts_on_host
    # Gloo gathers and scatters equal shares alone; the tokens of experts are not.
    mappings: Any = importlib.import_module("megatron.core.tensor_parallel.mappings")
    mappings._gather_along_first_dim = _gather(mappings._gather_along_first_dim)
    mappings._reduce_scatter_along_first_dim = _scatter(mappings._reduce_scatter_along_first_dim)


def _counts_on_host(dispatcher: Any, _point: str, tokens_per_expert: Any = None) -> Any:
    for name in ("input_splits", "output_splits", "output_splits_tp"):
        if torch.is_tensor(splits := getattr(dispatcher, name)):
            setattr(dispatcher, name, splits.numpy())
    return tokens_per_expert


def _gather(of_equal_shares: Callable[..., Any]) -> Callable[..., Any]:
    def gather(rows: Tensor, group: Any, output_split_sizes: Any = None, *rest: Any) -> Any:
        if output_split_sizes is None or group.size() == 1:
            return of_equal_shares(rows, group, output_split_sizes, *rest)
        sizes = [int(size) for size in output_split_sizes]
        mine = rows.new_zeros(max(sizes), *rows.shape[1:])
        mine[: len(rows)] = rows
        shares = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(shares, mine, group=group)
        return torch.cat([share[:size] for share, size in zip(shares, sizes, strict=True)])

    return gather


def _scatter(of_equal_shares: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_scatter(rows: Tensor, group: Any, input_split_sizes: Any = None, *rest: Any) -> Any:
        if input_split_sizes is None or group.size() == 1:
            return of_equal_shares(rows, group, input_split_sizes, *rest)
        total = rows.contiguous().clone()
        dist.all_reduce(total, group=group)
        sizes = [int(size) for size in input_split_sizes]
        return torch.split(total, sizes)[group.rank()].clone()

    return reduce_scatter
