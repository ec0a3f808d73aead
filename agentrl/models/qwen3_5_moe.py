"""Qwen3.5 without eyes, with experts in all layers; the one that all tokens pass has a gate."""

from typing import Any

from agentrl.models.architecture import Architecture
from agentrl.models.decoder import PARTS, tiny
from agentrl.models.delta_net import is_predictor, read_delta_net_experts
from agentrl.models.experts import EXPERTS_FUSED, with_experts
from agentrl.models.family import Family
from agentrl.models.qwen3_5 import QWEN35_FUSED, QWEN35_NET, QWEN35_TINY, read_qwen35
from agentrl.models.stacks import EXPERTS_STACKED

__all__ = ["FAMILY"]


def _read(config: dict[str, Any]) -> Architecture:
    # Its files have no intermediate_size: no layer has a dense MLP.
    width = {"intermediate_size": config["moe_intermediate_size"]}
    return read_delta_net_experts(config, *read_qwen35({**width, **config}))


FAMILY = Family(
    name="qwen3-5-moe",
    architectures=("Qwen3_5MoeForCausalLM",),
    read=_read,
    is_passenger=is_predictor,
    parts=tuple({part.key: part for part in (*with_experts(PARTS), *QWEN35_NET)}.values()),
    defaults={"num_key_value_heads": 2, "head_dim": 256},
    tiny={
        **tiny("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
        **QWEN35_TINY,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    stacks=EXPERTS_STACKED,
    chat_formats=("qwen3-5",),
    engine_fused={**EXPERTS_FUSED, **QWEN35_FUSED},
    engine_class="sglang.srt.models.qwen3_5_text:Qwen3_5MoeForCausalLM",
    engine_ranks=True,
)
