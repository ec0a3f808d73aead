"""The plan of slime's scripts for models with experts, against a count on paper."""

from typing import Any, NamedTuple

import pytest

from agentrl.config.device_defaults import for_device
from agentrl.config.run import RunConfig
from agentrl.learner.megatron import rehearse
from agentrl.models.registry import describe_model
from tests.parity.test_plan_on_paper import AGAIN
from tests.slices import IS_FULL

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not IS_FULL, reason="a stage of dozens of layers, minutes for each model"),
]

#: All three keep the optimizer on the host, and cut experts by no tensor parallelism.
COMMON = AGAIN | {
    "sequence_parallel": True,
    "optimizer_cpu_offload": True,
    "use_precision_aware_optimizer": True,
    "expert_tensor_parallel_size": 1,
}


class Script(NamedTuple):
    """A model and what a script of slime's passes. `layers`: of the first stage, `dense` of which
    have no experts; `attention`: its parameters in a layer of a rank; `heads`: numbers that
    queries, keys and values have for a token on a rank, and `keys_and_values` these two; `kept`:
    models, with the reference."""

    card: dict[str, Any]
    nodes: int
    megatron: dict[str, int]
    tokens: int
    kept: int
    layers: int
    dense: int
    attention: int
    heads: int
    keys_and_values: int

    def size(self, kind: str) -> int:
        return self.megatron.get(f"{kind}_parallel_size", 1)


def qwen(layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
        "hidden_size": hidden, "intermediate_size": 3 * hidden, "moe_intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": False,
        "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "router_aux_loss_coef": 0.001,
    }  # fmt: skip


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "vocab_size": 129280, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "norm_topk_prob": True, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "routed_scaling_factor": 2.5, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 163840,
    "tie_word_embeddings": False, "num_nextn_predict_layers": 0,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip

#: Of a rank: queries and keys come from narrow vectors, which every rank has whole.
LATENT = 7168 * (1536 + 512 + 64) + 16 * (1536 * 192 + 512 * 256 + 128 * 7168)

SCRIPTS = {
    "run-qwen3-30B-A3B.sh": Script(
        qwen(48, 2048, 32, 768), 1,
        {"tensor_model_parallel_size": 4, "expert_model_parallel_size": 8},
        20480, 2, layers=48, dense=0, attention=2048 * 128 * (2 * 32 + 2 * 4) // 4,
        heads=(32 + 8) * 128 // 4, keys_and_values=8 * 128 // 4,
    ),
    "run-qwen3-235B-A22B.sh": Script(
        qwen(94, 4096, 64, 1536), 8,
        {
            "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4,
            "context_parallel_size": 2, "expert_model_parallel_size": 16,
            "decoder_last_pipeline_num_layers": 22,
        },
        16384, 1, layers=24, dense=0, attention=4096 * 128 * (2 * 64 + 2 * 4) // 4,
        heads=(64 + 8) * 128 // 4, keys_and_values=8 * 128 // 4,
    ),
    "run-deepseek-r1.sh": Script(
        DEEPSEEK, 16,
        {
            "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4,
            "context_parallel_size": 4, "expert_model_parallel_size": 32,
            "decoder_last_pipeline_num_layers": 13,
        },
        16384, 2, layers=16, dense=3, attention=LATENT, heads=16 * 3 * 192,
        keys_and_values=16 * 2 * 192,
    ),
}  # fmt: skip


def parameters(it: Script) -> int:
    """Of the first stage of a rank, but for the norms. The last stage has a table too."""
    hidden, tensor = int(it.card["hidden_size"]), it.size("tensor_model")
    experts = int(it.card.get("num_experts") or it.card["n_routed_experts"])
    each: int = 3 * hidden * it.card["moe_intermediate_size"]
    of_all = it.card.get("n_shared_experts", 0) * each // tensor + hidden * experts
    sparse = it.layers - it.dense
    tables = 2 if it.size("pipeline_model") == 1 else 1
    return int(
        it.layers * it.attention
        + sparse * (experts // it.size("expert_model") * each + of_all)
        + it.dense * 3 * hidden * it.card["intermediate_size"] // tensor
        + tables * it.card["vocab_size"] * hidden // tensor
    )


def on_paper(it: Script) -> float:
    """Bytes of a rank of the first stage at the peak."""
    hidden, tensor = int(it.card["hidden_size"]), it.size("tensor_model")
    # weights of each model in bfloat16, gradients in float32
    kept = parameters(it) * (2 * it.kept + 4)
    # of every layer its input is kept, cut by sequence parallelism, for all micro-batches that are
    # under way
    inputs = it.layers * it.tokens * hidden * 2 / tensor * it.size("pipeline_model")
    # of the layer that is computed again: each token goes to eight experts, and as many come back.
    # Sent, received, in the order of the experts, what these make, the same three times on the way
    # back, and once weighted in float32: eight of them, and a gradient of each
    sent = 8 * it.tokens / tensor
    ways = 16 * sent * hidden * 2
    # in the experts gate and up, what SiLU makes, their product, and a gradient of each
    inside = 8 * sent * int(it.card["moe_intermediate_size"]) * 2
    heads = 3 * it.tokens * it.heads * 2
    # whole hidden states, before and after attention and before and after shared experts, and a
    # gradient of each
    whole = (8 if it.card.get("n_shared_experts") else 4) * it.tokens * hidden * 2
    # keys and values of all context-parallel ranks: gathered, in the order of the sequences, cut
    # for each of two chunks, and a gradient of each
    context = it.size("context")
    gathered = 8 * context * it.tokens * it.keys_and_values * 2 if context > 1 else 0
    return kept + inputs + ways + inside + heads + whole + gathered


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_takes_what_it_takes_on_paper(script: str) -> None:
    it = SCRIPTS[script]
    config = RunConfig(
        actor_num_nodes=it.nodes,
        actor_num_gpus_per_node=8,
        max_tokens_per_gpu=it.tokens,
        use_kl_loss=it.kept == 2,
        megatron=COMMON | it.megatron,
    )
    architecture = describe_model(it.card, None, source=script).architecture
    found = rehearse(for_device(config, "cuda"), architecture, 0, it.tokens)
    assert found.num_parameters == pytest.approx(parameters(it), rel=0.001)
    assert found.peak == pytest.approx(on_paper(it), rel=0.15)
