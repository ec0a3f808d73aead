"""What SGLang lacks for data-parallel attention on a CPU host that is not its own CPU engine.

Three of its modules ask when they are imported whether the host is SGLang's own CPU engine. If not,
they move rows between the ranks' buffers by a Triton kernel, gather and scatter them by operators
that GPUs alone have, and page-lock counts, which needs an accelerator. SGLang's own torch code for
all of that is chosen here. What comes back from shared-out experts, NCCL would give to each rank
row by row; here ranks take their rows of the whole sum, as in SGLang's deterministic runs. Loaded
by SGLang inside engine processes only.
"""

from typing import Any

from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention
from sglang.srt.model_executor import forward_batch_info

__all__ = ["install"]


def install() -> None:
    """Serve attention that is data-parallel; again does nothing."""
    dp_attention.memcpy_func = dp_attention.memcpy_cpu
    parallel_state._is_cpu = True
    forward_batch_info._is_cpu = True
    parallel_state.GroupCoordinator.reduce_scatterv = _own_rows_of_sum


def _own_rows_of_sum(group: Any, rows: Any, output: Any = None, sizes: Any = None) -> Any:
    return group._deterministic_reduce_scatterv(rows, output, sizes)
