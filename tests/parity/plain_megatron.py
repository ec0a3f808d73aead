"""Plain megatron-core, and nothing of ours: a GPTModel that writes or reads Megatron's checkpoints.

    plain_megatron.py save FOLDER CONFIG KIND    random weights; logits to FOLDER.logits
    plain_megatron.py load FOLDER CONFIG KIND    those in FOLDER; the same

CONFIG is the config.json of a Qwen2, a Qwen3, a Qwen3-MoE, a GLM-4.5 or a DeepSeek-V3 (Moonlight
included). KIND is `layered` (a tensor for all layers, as Megatron's own training writes) or `apart`
(one for each, as always where some layers alone have experts), with `-bf16` for that type, or
`unpadded` where the vocabulary is as large as its tokens need. With `-te` norms have the names that
they have in layers of Transformer Engine, and not those of local layers.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

#: Norms whose names Transformer Engine fuses with the projection behind them.
FUSED = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}
PRE, FUSED_PRE = "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"


def experts(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of experts; none of a dense decoder."""
    number = config.get("num_experts") or config.get("n_routed_experts")
    if number is None:
        return {}
    found = {
        "num_moe_experts": number,
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",  # the one that asks for no GPU
    }
    return found | (sigmoid(config) if "n_routed_experts" in config else {})


def sigmoid(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of a router with sigmoid scores behind dense layers, and of experts that all tokens
    pass: those of DeepSeek-V3 and of GLM-4.5."""
    dense, layers = config["first_k_dense_replace"], config["num_hidden_layers"]
    groups = config["n_group"]
    return {
        "moe_layer_freq": [0] * dense + [1] * (layers - dense),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_router_topk_scaling_factor": config["routed_scaling_factor"],
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": config["topk_group"] if groups > 1 else None,
        "moe_shared_expert_intermediate_size": (
            config["n_shared_experts"] * config["moe_intermediate_size"]
        ),
    }


def attention(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of queries, keys and values."""
    kind, heads = config["model_type"], config["num_attention_heads"]
    if kind != "deepseek_v3":
        return {
            "num_query_groups": config["num_key_value_heads"],
            "kv_channels": config["head_dim"],
            "qk_layernorm": config.get("use_qk_norm", kind.startswith("qwen3")),
            "add_qkv_bias": config.get("attention_bias", kind == "qwen2"),
        }
    rope = config["rope_parameters"]
    found = {
        "num_query_groups": heads,
        "qk_layernorm": True,
        "q_lora_rank": config["q_lora_rank"],
        "kv_lora_rank": config["kv_lora_rank"],
        "qk_head_dim": config["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
        "v_head_dim": config["v_head_dim"],
        "rotary_base": rope["rope_theta"],
        "rope_type": "rope",
        "rotary_scaling_factor": 1.0,
    }
    if rope["rope_type"] == "yarn":
        same = ("original_max_position_embeddings", "beta_fast", "beta_slow", "mscale")
        found |= {name: rope[name] for name in (*same, "mscale_all_dim")}
        found |= {"rope_type": "yarn", "rotary_scaling_factor": rope["factor"]}
    return found


class LatentAttention(DotProductAttention):  # type: ignore[misc]
    """megatron-core's own attention, which takes values of the width of the keys alone."""

    def __init__(self, config: Any, *, k_channels: int = 0, v_channels: int = 0, **more: Any):
        super().__init__(config, **more)
        self.hidden_size_per_partition = config.num_attention_heads * v_channels


def name_as_transformer_engine(layers: Any, settings: Any) -> None:
    """Name the norms of local `layers` in checkpoints as those of Transformer Engine are."""
    pattern = settings.moe_layer_freq
    for index, layer in enumerate(layers):
        has_experts = settings.num_moe_experts and (pattern == 1 or pattern[index])
        names = layer.submodules.sharded_state_dict_keys_map
        if settings.multi_latent_attention:
            names |= FUSED
        names |= {PRE: FUSED_PRE}
        if has_experts:
            del names[PRE]


def build(config: dict[str, Any], dtype: torch.dtype, padding: int, is_te: bool) -> Any:
    """The model, its vocabulary padded by so many rows."""
    kind = MLATransformerConfig if "kv_lora_rank" in config else TransformerConfig
    settings = kind(
        **experts(config),
        **attention(config),
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        layernorm_epsilon=config["rms_norm_eps"],
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        init_method_std=0.1,
        params_dtype=dtype,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )
    block = get_gpt_decoder_block_spec(
        settings, use_transformer_engine=False, normalization="RMSNorm"
    )
    for layer in block.layer_specs if settings.multi_latent_attention else ():
        layer.submodules.self_attention.submodules.core_attention = LatentAttention
    if is_te:
        name_as_transformer_engine(block.layer_specs, settings)
    torch.manual_seed(3)
    model = GPTModel(
        settings,
        block,
        vocab_size=config["vocab_size"] + padding,
        max_sequence_length=config["max_position_embeddings"],
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
        position_embedding_type="rope",
        rotary_base=config["rope_parameters"]["rope_theta"],
        rotary_percent=config.get("partial_rotary_factor", 1.0),
    )
    for name, tensor in weights(model).items():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(tensor, 0.5, 1.5)
    return model


def weights(model: Any) -> dict[str, torch.Tensor]:
    """The parameters, and the buffers that a checkpoint has."""
    return {name: tensor for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}


def save(folder: Path, model: Any, config: dict[str, Any], content: dict[str, Any]) -> None:
    """Write iteration 10 below `folder`, with tracker and arguments as Megatron's training does."""
    place = folder / "iter_0000010"
    place.mkdir(parents=True)
    given = argparse.Namespace(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_query_groups=config["num_key_value_heads"],
        rotary_base=int(config["rope_parameters"]["rope_theta"]),
        norm_epsilon=config["rms_norm_eps"],
        untie_embeddings_and_output_weights=not config["tie_word_embeddings"],
        attention_backend=AttnBackend.auto,
        params_dtype=torch.float32,
        data_path=None,
    )
    state = {
        "model": model.sharded_state_dict(metadata=content),
        "args": given,
        "iteration": 10,
        "checkpoint_version": 3.0,
        "model_type": ModelType.encoder_or_decoder,
    }
    dist_checkpointing.save(state, str(place), content_metadata=content)
    (folder / "latest_checkpointed_iteration.txt").write_text("10")


def load(folder: Path, model: Any) -> None:
    """Read the checkpoint that the tracker names, or that `folder` is."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    place = folder
    if tracker.exists():
        said = tracker.read_text().strip()
        place = folder / (said if said == "release" else f"iter_{int(said):07d}")
    content = dist_checkpointing.load_content_metadata(str(place))
    wanted = {"model": model.sharded_state_dict(metadata=content)}
    found = dist_checkpointing.load(wanted, str(place), strict="log_all")
    model.load_state_dict(found["model"])


@torch.no_grad()
def logits(model: Any, vocabulary: int) -> torch.Tensor:
    """Of one sequence, without the padding of the vocabulary."""
    tokens = torch.arange(24)[None] * 7 % vocabulary
    ahead = torch.ones(1, 1, 24, 24, dtype=torch.bool).triu(1)
    found: torch.Tensor = model.eval()(tokens, torch.arange(24)[None], ahead)
    return found[0, :, :vocabulary].float()


def main(verb: str, folder: Path, config_file: Path, kind: str) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    torch.distributed.init_process_group("gloo")
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
        torch.cuda.synchronize = lambda *_: None
    # megatron-core asks for it, and without Transformer Engine never sets it.
    vars(moe_utils).setdefault("te_general_gemm", None)
    # It takes Transformer Engine for installed here.
    vars(multi_latent_attention)["HAVE_TE"] = False
    parallel_state.initialize_model_parallel()
    initialize_rng_tracker(inference_rng_tracker=True)
    config = json.loads(config_file.read_text())
    dtype = torch.bfloat16 if kind.endswith("-bf16") else torch.float32
    padding = 0 if kind.startswith("unpadded") else 32
    model = build(config, dtype, padding, is_te=kind.endswith("-te"))
    if verb == "save":
        content = {"non_homogeneous_layers": True} if kind.startswith("apart") else {}
        save(folder, model, config, content)
    else:
        load(folder, model)
    torch.save(logits(model, config["vocab_size"]), f"{folder}.logits")
    torch.save(weights(model), f"{folder}.weights")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # its writer starts a process that imports this file again
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
