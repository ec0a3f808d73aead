"""Leaves parameters as they are: those that `--freeze-params-name-list` names, or
`--only-train-params-name-list` does not.

A frozen parameter requires no gradient before megatron-core's DDP and optimizer see the model. So
it has neither a gradient buffer nor moments, takes no part in the gradient's norm, in clipping and
in weight decay, and keeps its bits. Pushes and checkpoints hold its weight as that of any other.
What is no parameter, such as the correction bias of a router, goes by its own flags.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch import Tensor

from agentrl.config.freezing import about_names, expressions, freezes, name_of, trains
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.megatron import parallel, placement
from agentrl.learner.megatron.model import Stages
from agentrl.learner.megatron.value_head import HEAD, has_value_head

__all__ = ["Counts", "freeze"]


class Counts(NamedTuple):
    """Numbers in the parameters of a whole model, over all ranks: those that are trained, and
    all."""

    trained: int
    whole: int


def freeze(stages: Stages, cfg: RunConfig, settings: MegatronSettings, whose: str) -> Counts:
    """Freeze what `cfg` says of this rank's share of a model (`whose`), which nothing wraps yet.
    Collective. Raises ConfigError on all ranks when an expression is in no name of any of them, or
    no parameter is left."""
    names: dict[str, bool] = {}
    sums = [0, 0]
    for parameter, made_of in placement.parts(stages).items():
        if not isinstance(parameter, torch.nn.Parameter):
            continue
        name = name_of(_key(made_of[0]))
        is_head = name.startswith(HEAD) and has_value_head(stages[-1])
        names[name] = parameter.requires_grad = is_head or trains(cfg, name)
        size = sum(prod(part.local_shape) for part in made_of if not any(part.replica_id))
        sums = [sums[0] + size * parameter.requires_grad, sums[1] + size]
    if freezes(cfg):
        _check(cfg, names, whose)
        for stage in stages:
            _add_trained_biases_outside(stage)
        if settings.recompute_granularity is not None or settings.expert_model_parallel_size > 1:
            for stage in stages:
                _let_gradients_pass(stage)
    trained, whole = _over_ranks(sums)
    return Counts(trained, whole)


def _key(part: Any) -> str:
    """Of a tensor in a checkpoint; of an expert with its number behind it."""
    return ".".join([part.key, *map(str, part.global_offset[: part.prepend_axis_num])])


def _check(cfg: RunConfig, names: Mapping[str, bool], whose: str) -> None:
    """A name that one of the ranks has is there. `names`: which of them are trained."""
    found = [any(re.search(each, name) for name in names) for each in expressions(cfg)]
    if all(_over_ranks([*found, any(names.values())])):
        return
    everywhere = chain.from_iterable(parallel.all_gather_msgpack(list(names)))
    raise ConfigError("\n".join(about_names(cfg, set(everywhere), whose)))


def _over_ranks(numbers: Sequence[int]) -> list[int]:
    """Sums over all ranks of the learner."""
    total = torch.tensor(numbers, dtype=torch.int64)
    dist.all_reduce(total)
    return [int(number) for number in total]


def _add_trained_biases_outside(stage: Any) -> None:
    """Where a weight is frozen and its bias is not, leave adding the bias to torch: megatron-core's
    product with a frozen weight gives the bias that it adds no gradient."""
    for module in stage.modules():
        if isinstance(module, ColumnParallelLinear) and not module.skip_bias_add:
            weight, bias = module.weight, module.bias
            frozen = weight is not None and not weight.requires_grad
            if frozen and bias is not None and bias.requires_grad:
                module._forward_impl = partial(_product_and_bias, module._forward_impl)


def _product_and_bias(product: Callable[..., Tensor], *, bias: Tensor, **given: Any) -> Tensor:
    return product(bias=None, **given) + bias


def _let_gradients_pass(stage: Any) -> None:
    """Have what goes into the first layer require a gradient, which behind a frozen embedding it
    does not. megatron-core gives what it computes again a gradient only if its input wants one; and
    ranks that share out experts exchange gradients of tokens, all of them or none."""
    if stage.pre_process and not stage.embedding.word_embeddings.weight.requires_grad:
        stage.embedding.register_forward_hook(lambda _, __, hidden: hidden.requires_grad_())
