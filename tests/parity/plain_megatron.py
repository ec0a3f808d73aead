"""Plain megatron-core, and nothing of ours: a GPTModel that writes or reads Megatron's checkpoints.

    plain_megatron.py save FOLDER CONFIG KIND    random weights; logits to FOLDER.logits
    plain_megatron.py load FOLDER CONFIG KIND    those in FOLDER; the same

CONFIG is the config.json of a Qwen2, a Qwen3 or a Qwen3-MoE. KIND is `layered` (a tensor for all
layers, as Megatron's own training writes) or `apart` (one for each), with `-bf16` for that type,
or `unpadded` where the vocabulary is as large as its tokens need. With `-te` the norm before
experts has the name that it has in layers of Transformer Engine, and not that of local layers.
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
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig


def experts(config: dict[str, Any]) -> dict[str, Any]:
    """Settings of experts in all layers; none of a dense decoder."""
    if "num_experts" not in config:
        return {}
    return {
        "num_moe_experts": config["num_experts"],
        "moe_router_topk": config["num_experts_per_tok"],
        "moe_ffn_hidden_size": config["moe_intermediate_size"],
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",  # the one that asks for no GPU
    }


def build(config: dict[str, Any], dtype: torch.dtype, padding: int, is_te: bool) -> Any:
    """The model, its vocabulary padded by so many rows."""
    settings = TransformerConfig(
        **experts(config),
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_hidden_size=config["intermediate_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config["head_dim"],
        layernorm_epsilon=config["rms_norm_eps"],
        normalization="RMSNorm",
        qk_layernorm=config["model_type"] != "qwen2",
        add_qkv_bias=config["model_type"] == "qwen2",
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
        persist_layer_norm=False,
    )
    layer = get_gpt_layer_local_spec(
        num_experts=settings.num_moe_experts,
        qk_layernorm=settings.qk_layernorm,
        normalization="RMSNorm",
    )
    if is_te and settings.num_moe_experts:
        del layer.submodules.sharded_state_dict_keys_map["pre_mlp_layernorm."]
    torch.manual_seed(3)
    model = GPTModel(
        settings,
        layer,
        vocab_size=config["vocab_size"] + padding,
        max_sequence_length=config["max_position_embeddings"],
        share_embeddings_and_output_weights=config["tie_word_embeddings"],
        position_embedding_type="rope",
        rotary_base=config["rope_parameters"]["rope_theta"],
    )
    for name, parameter in model.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


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
    torch.save(dict(model.named_parameters()), f"{folder}.weights")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":  # its writer starts a process that imports this file again
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
