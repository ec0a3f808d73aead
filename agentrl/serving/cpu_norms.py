"""MiniMax-M2's norm of queries and keys on a CPU host, where SGLang has it as Triton kernels alone.

Its two steps, the squares and what is made of them, are replaced by SGLang's plugin registry; what
stands between them, the sum over tensor-parallel ranks, stays SGLang's.
"""

from torch import Tensor, cat

__all__ = ["register_norms"]


def register_norms() -> None:
    """Replace the kernels when SGLang applies its hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for function in (rms_sumsq_serial, rms_apply_serial):
        place = f"sglang.srt.models.minimax_m2.{function.__name__}"
        HookRegistry.register(place, function, HookType.REPLACE)


def rms_sumsq_serial(x1: Tensor, x2: Tensor) -> Tensor:
    """The sums of squares of the rows of both, one after the other, in float32."""
    return cat([x.float().square().sum(-1) for x in (x1, x2)])


def rms_apply_serial(
    x1: Tensor,
    x2: Tensor,
    w1: Tensor,
    w2: Tensor,
    sum_sq: Tensor,
    tp_world: int = 1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """Both normalized by those sums, which are of all ranks."""
    first, second = (
        (x.float() * (squares / (x.shape[1] * tp_world) + eps).rsqrt()[:, None] * w).to(x.dtype)
        for x, w, squares in zip((x1, x2), (w1, w2), sum_sq.chunk(2), strict=True)
    )
    return first, second
