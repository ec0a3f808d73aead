"""The one table between Hugging Face names and megatron-core parameters, read in both directions.

Loading fills every parameter of this rank and refuses a checkpoint that lacks a tensor or has one
too many. Exporting gathers full tensors over the tensor-parallel ranks and hands them from each
pipeline stage to all. A round trip is bit-equal.

Layouts over tensor-parallel ranks: REPLICATED; COLUMN, rows of the matrix shared out; ROW, columns
shared out; GATED, gate and up projections each shared out by rows and stacked; QKV, for each
key-value head its queries, key and value stacked, then shared out by rows.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from agentrl.learner.megatron.architecture import Architecture

__all__ = ["export", "hf_shapes", "load"]


class Layout(Enum):
    REPLICATED = "replicated"
    COLUMN = "column"
    ROW = "row"
    GATED = "gated"
    QKV = "qkv"


class Rule(NamedTuple):
    """One megatron-core parameter: the tensors it is made of and how it is shared out."""

    hf: tuple[str, ...]
    layout: Layout


_EMBEDDING = Rule(("model.embed_tokens.weight",), Layout.COLUMN)
_HEAD = Rule(("lm_head.weight",), Layout.COLUMN)
_FINAL_NORM = Rule(("model.norm.weight",), Layout.REPLICATED)
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LAYER: dict[str, Rule] = {
    "input_layernorm.weight": Rule(("input_layernorm.weight",), Layout.REPLICATED),
    "self_attention.linear_qkv.weight": Rule(tuple(f"{n}.weight" for n in _QKV), Layout.QKV),
    "self_attention.linear_qkv.bias": Rule(tuple(f"{n}.bias" for n in _QKV), Layout.QKV),
    "self_attention.q_layernorm.weight": Rule(("self_attn.q_norm.weight",), Layout.REPLICATED),
    "self_attention.k_layernorm.weight": Rule(("self_attn.k_norm.weight",), Layout.REPLICATED),
    "self_attention.linear_proj.weight": Rule(("self_attn.o_proj.weight",), Layout.ROW),
    "pre_mlp_layernorm.weight": Rule(("post_attention_layernorm.weight",), Layout.REPLICATED),
    "mlp.linear_fc1.weight": Rule(("mlp.gate_proj.weight", "mlp.up_proj.weight"), Layout.GATED),
    "mlp.linear_fc2.weight": Rule(("mlp.down_proj.weight",), Layout.ROW),
}


def hf_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of the Hugging Face checkpoint with its shape, in the order of the layers. A
    tied head is not among them."""
    return {
        name: _shape(architecture, name)
        for _, rule in _stage_rules(architecture, 0, 1)
        for name in rule.hf
    }


def _shape(a: Architecture, name: str) -> tuple[int, ...]:
    queries, groups = a.num_attention_heads * a.kv_channels, a.num_query_groups * a.kv_channels
    module, kind = name.split(".")[-2:]
    outputs, inputs = {
        "embed_tokens": (a.vocab_size, a.hidden_size),
        "lm_head": (a.vocab_size, a.hidden_size),
        "q_proj": (queries, a.hidden_size),
        "k_proj": (groups, a.hidden_size),
        "v_proj": (groups, a.hidden_size),
        "o_proj": (a.hidden_size, queries),
        "gate_proj": (a.ffn_hidden_size, a.hidden_size),
        "up_proj": (a.ffn_hidden_size, a.hidden_size),
        "down_proj": (a.hidden_size, a.ffn_hidden_size),
        "q_norm": (a.kv_channels, None),
        "k_norm": (a.kv_channels, None),
    }.get(module, (a.hidden_size, None))
    return (outputs,) if inputs is None or kind == "bias" else (outputs, inputs)


def _stage_rules(a: Architecture, stage: int, num_stages: int) -> Iterator[tuple[str, Rule]]:
    """Name and rule of each parameter of a pipeline stage that the checkpoint names; every rank can
    tell them for every stage."""
    share = a.num_layers // num_stages
    if stage == 0:
        yield "embedding.word_embeddings.weight", _EMBEDDING
    for local in range(share):
        prefix = f"model.layers.{stage * share + local}."
        for name, rule in _LAYER.items():
            if name in _layer_lacks(a):
                continue
            hf = tuple(prefix + part for part in rule.hf)
            yield f"decoder.layers.{local}.{name}", Rule(hf, rule.layout)
    if stage == num_stages - 1:
        yield "decoder.final_layernorm.weight", _FINAL_NORM
        if not a.tied_embeddings:
            yield "output_layer.weight", _HEAD


def _layer_lacks(a: Architecture) -> set[str]:
    lacks = set() if a.add_qkv_bias else {"self_attention.linear_qkv.bias"}
    if not a.qk_layernorm:
        lacks |= {"self_attention.q_layernorm.weight", "self_attention.k_layernorm.weight"}
    return lacks


@torch.no_grad()
def load(model: Any, architecture: Architecture, tensors: Mapping[str, Tensor]) -> None:
    """Copy this rank's share of the full `tensors` into `model`; they may be read lazily, and their
    names are those of `hf_shapes`. Every parameter is set."""
    group = parallel_state.get_tensor_model_parallel_group()
    stages = parallel_state.get_pipeline_model_parallel_group()
    rules = dict(_stage_rules(architecture, stages.rank(), stages.size()))
    parameters = dict(model.named_parameters())
    if "output_layer.weight" in parameters:
        # The last of several stages keeps its own copy of a tied embedding.
        rules.setdefault("output_layer.weight", _EMBEDDING)
    assert rules.keys() == parameters.keys(), rules.keys() ^ parameters.keys()
    for name, rule in rules.items():
        whole = [tensors[hf] for hf in rule.hf]
        share = _cut(whole, rule.layout, architecture, group.rank(), group.size())
        parameters[name].copy_(share)
        _mark(parameters[name], rule.layout)


def _mark(parameter: Any, layout: Layout) -> None:
    """Say which parameters are shared out: without it megatron-core, which marks them only when it
    initialises them itself, leaves all but one rank's share out of the gradient norm."""
    if layout is not Layout.REPLICATED:
        parameter.tensor_model_parallel = True
        parameter.partition_dim = 1 if layout is Layout.ROW else 0
        parameter.partition_stride = 1


@torch.no_grad()
def export(model: Any, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Full tensors by Hugging Face name, on every rank, in the order of the layers; one parameter
    at a time is held in full. Collective over the model-parallel ranks: all must exhaust it."""
    stages = parallel_state.get_pipeline_model_parallel_group()
    parameters = dict(model.named_parameters())
    example = next(iter(parameters.values()))
    for stage in range(stages.size()):
        for name, rule in _stage_rules(architecture, stage, stages.size()):
            if stage == stages.rank():
                whole = _join(_shares(parameters[name], rule.layout), rule.layout, architecture)
            else:
                whole = [example.new_empty(_shape(architecture, hf)) for hf in rule.hf]
            for hf, tensor in zip(rule.hf, whole, strict=True):
                if stages.size() > 1:
                    tensor = tensor.contiguous()
                    dist.broadcast(tensor, dist.get_global_rank(stages, stage), group=stages)
                yield hf, tensor


def _shares(parameter: Tensor, layout: Layout) -> list[Tensor]:
    group = parallel_state.get_tensor_model_parallel_group()
    mine = parameter.detach()
    if layout is Layout.REPLICATED or group.size() == 1:
        return [mine]
    shares = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(shares, mine.contiguous(), group=group)
    return shares


def _cut(whole: list[Tensor], layout: Layout, a: Architecture, rank: int, size: int) -> Tensor:
    """Share `rank` of `size` of a parameter made of the full tensors `whole`."""
    if layout is Layout.REPLICATED:
        return whole[0]
    if layout is Layout.ROW:
        return whole[0].chunk(size, 1)[rank]
    if layout is Layout.GATED:
        return torch.cat([tensor.chunk(size, 0)[rank] for tensor in whole])
    if layout is Layout.COLUMN:
        return whole[0].chunk(size, 0)[rank]
    rest = whole[0].shape[1:]
    by_group = [tensor.view(a.num_query_groups, -1, *rest) for tensor in whole]
    return torch.cat(by_group, 1).reshape(-1, *rest).chunk(size, 0)[rank]


def _join(shares: list[Tensor], layout: Layout, a: Architecture) -> list[Tensor]:
    """The full tensors of a parameter from all its shares: the inverse of `_cut`."""
    if layout is Layout.REPLICATED:
        return [shares[0]]
    if layout is Layout.ROW:
        return [torch.cat(shares, 1)]
    if layout is Layout.GATED:
        halves = [share.chunk(2, 0) for share in shares]
        return [torch.cat([half[i] for half in halves]) for i in (0, 1)]
    joined = torch.cat(shares)
    if layout is Layout.COLUMN:
        return [joined]
    rest = joined.shape[1:]
    by_group = joined.view(a.num_query_groups, -1, *rest)
    queries = by_group.shape[1] - 2 * a.kv_channels
    parts = torch.split(by_group, [queries, a.kv_channels, a.kv_channels], 1)
    return [part.reshape(-1, *rest) for part in parts]
