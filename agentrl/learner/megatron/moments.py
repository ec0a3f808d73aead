"""What the optimizer keeps beside the weights, in one form for all of megatron-core's optimizers.

For each parameter: `exp_avg` and `exp_avg_sq` of AdamW, and with bf16 weights `fp32_param`, the
main weights. The plain optimizer keeps whole parameters, the distributed one flat ranges of them;
a checkpoint of either is read by the other. One that is offloaded keeps copies of its weights on
the host, in float32, and updates these; in a checkpoint they are the main weights. AdamW's own step
count is the number of completed steps and is not kept twice. Learning rate, betas and decay are the
configuration's, not a checkpoint's.

megatron-core's `sharded_state_dict` of these optimizers is not used. It cannot save before the
first step, takes a step on dummy values before it loads, names the same tensor differently for each
optimizer, and gathers a whole replica on one rank.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from megatron.core.optimizer.cpu_offloading import HybridDeviceOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params
from torch import Tensor

__all__ = ["Held", "adams", "held", "set_steps"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Held(NamedTuple):
    """Elements of `parameter` from `start`, by name, as flat views of the optimizer's memory.

    is_cut: every data-parallel rank holds other elements; otherwise copies.
    """

    parameter: Any
    start: int
    tensors: dict[str, Tensor]
    is_cut: bool


def held(optimizer: Any) -> Iterator[Held]:
    """What this rank's share of `optimizer`, a megatron-core ChainedOptimizer, keeps. Moments that
    no step has made yet are made here, as zeros, just as the first step would."""
    for part in _parts(optimizer):
        is_cut = isinstance(part, DistributedOptimizer)
        owners = {
            weight: adam
            for adam in _adams(part.optimizer)
            for group in adam.param_groups
            for weight in group["params"]
        }
        copies = getattr(part.optimizer, "param_to_inner_param", {})
        for parameter, start, main in _cut(part) if is_cut else _whole(part):
            updated = copies.get(main, main)
            state = _state(owners[updated], updated)
            tensors = {name: state[name].view(-1) for name in _MOMENTS}
            if updated.dtype != parameter.dtype:
                tensors["fp32_param"] = updated.detach().view(-1)
            yield Held(parameter, start, tensors, is_cut)


def set_steps(optimizer: Any, completed_steps: int) -> None:
    """Set AdamW's step count, from which its bias correction follows."""
    for adam in adams(optimizer):
        for state in adam.state.values():
            if "step" in state:
                state["step"].fill_(completed_steps)
        if not isinstance(adam, torch.optim.AdamW):
            # The fused ones of Transformer Engine and Apex count per group.
            for group in adam.param_groups:
                group["step"] = completed_steps


def adams(optimizer: Any) -> list[Any]:
    """The torch optimizers that `optimizer`, a megatron-core ChainedOptimizer, is made of."""
    return [adam for part in _parts(optimizer) for adam in _adams(part.optimizer)]


def _parts(optimizer: Any) -> list[Any]:
    """Those of this rank that have a parameter."""
    return [part for part in optimizer.chained_optimizers if not part.is_stub_optimizer]


def _adams(adam: Any) -> list[Any]:
    """The optimizers that an offloaded one is made of, on the host and on the device."""
    return adam.sub_optimizers if isinstance(adam, HybridDeviceOptimizer) else [adam]


def _whole(part: Any) -> Iterator[tuple[Any, int, Tensor]]:
    if isinstance(part, Float16OptimizerWithFloat16Params):
        for parameters, mains in zip(
            (*part.float16_groups, *part.fp32_from_fp32_groups),
            (*part.fp32_from_float16_groups, *part.fp32_from_fp32_groups),
            strict=True,
        ):
            for parameter, main in zip(parameters, mains, strict=True):
                yield parameter, 0, main
    else:
        for parameter in part.get_parameters():
            yield parameter, 0, parameter


def _cut(part: Any) -> Iterator[tuple[Any, int, Tensor]]:
    for buffer in part.gbuf_ranges:
        for buckets in buffer.values():
            for bucket in buckets:
                for parameter, ranges in bucket["param_map"].items():
                    group, index = part.model_param_group_index_map[parameter]
                    main = part.optimizer.param_groups[group]["params"][index]
                    yield parameter, ranges["param"].start, main


def _state(adam: Any, main: Tensor) -> dict[str, Tensor]:
    state: dict[str, Tensor] = adam.state[main]
    if not state:
        if isinstance(adam, torch.optim.AdamW):
            is_fused = any(group.get("fused") for group in adam.param_groups)
            state["step"] = torch.tensor(0.0, device=main.device if is_fused else None)
        for name in _MOMENTS:
            state[name] = torch.zeros_like(main, memory_format=torch.preserve_format)
    return state
