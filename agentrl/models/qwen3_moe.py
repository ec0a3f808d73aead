"""Qwen3-MoE: Qwen3, with experts in the place of the MLP in some or all layers."""

from typing import Any

from msgspec.structs import asdict

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import FUSED, PARTS, read_decoder, tiny
from agentrl.models.experts import EXPERTS_FUSED, Experts, with_experts
from agentrl.models.family import Family

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Architecture:
    decoder = read_decoder(config, qk_layernorm=True)
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    return Experts(
        **asdict(decoder),
        num_moe_experts=config.get("num_experts") or config["num_local_experts"],
        moe_router_topk=config["num_experts_per_tok"],
        moe_ffn_hidden_size=config["moe_intermediate_size"],
        moe_layer_freq=[
            int(layer not in dense and (layer + 1) % step == 0)
            for layer in range(decoder.num_layers)
        ],
        moe_router_pre_softmax=not config.get("norm_topk_prob", False),
    )


FAMILY = Family(
    name="qwen3-moe",
    architectures=("Qwen3MoeForCausalLM",),
    read=_read,
    parts=with_experts(PARTS),
    chat_formats=("qwen3", "qwen3-coder", "qwen3-thinking"),
    defaults={"num_key_value_heads": 4},
    tiny={
        **tiny("Qwen3MoeForCausalLM", "qwen3_moe"),
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    engine_fused={**EXPERTS_FUSED, **FUSED},
    engine_class="sglang.srt.models.qwen3_moe:Qwen3MoeForCausalLM",
    engine_ranks=True,
)
