"""Write `scripts/models/NAME.sh`, the arguments by which Megatron knows a published model, from
`model_facts.toml`: what its config.json says, in the words of config.json.

    python scripts/model_args.py            write the files
    python scripts/model_args.py --check    exit 1 if they differ from the facts

A launch script sources one and passes "${MODEL_ARGS[@]}". Nothing of it is needed here, for the
learner reads config.json: what is given is compared with it. MODEL_ARGS_ROTARY_BASE gives another
base of the rotary embedding.
"""

import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "arguments", "facts", "scripts"]

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "models"

Facts = dict[str, Any]
Line = tuple[str, ...]

#: Keys of config.json whose number is the flag's.
_NUMBERS = {
    "num_hidden_layers": "--num-layers",
    "hidden_size": "--hidden-size",
    "intermediate_size": "--ffn-hidden-size",
    "num_attention_heads": "--num-attention-heads",
    "head_dim": "--kv-channels",
    "vocab_size": "--vocab-size",
    "max_position_embeddings": "--max-position-embeddings",
    "rms_norm_eps": "--norm-epsilon",
    "rope_theta": "--rotary-base",
    "partial_rotary_factor": "--rotary-percent",
    "num_nextn_predict_layers": "--mtp-num-layers",
}
_LATENT_NUMBERS = {
    "q_lora_rank": "--q-lora-rank",
    "kv_lora_rank": "--kv-lora-rank",
    "qk_nope_head_dim": "--qk-head-dim",
    "qk_rope_head_dim": "--qk-pos-emb-head-dim",
    "v_head_dim": "--v-head-dim",
}
#: What no key says and an architecture always has.
_QKV_BIAS = ("Qwen2ForCausalLM", "MiMoForCausalLM")
_QK_NORM = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "MiniMaxM2ForCausalLM")
_SANDWICH = ("Glm4ForCausalLM",)
_GATED_ATTENTION = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)


@cache
def facts() -> dict[str, Facts]:
    """What config.json says of each published model, by name. TOML knows no null: a Mistral has it
    for its window, and latent attention for a rank of queries that the table leaves out."""
    table = tomllib.loads((HERE / "model_facts.toml").read_text())

    def whole(name: str) -> Facts:
        own = dict(table[name])
        like = own.pop("like", None)
        return (whole(like) if like else {}) | own

    return {name: _null(found) | found for name in table if (found := whole(name))}


def _null(config: Facts) -> Facts:
    """Keys that a config.json gives as null, where the table leaves them out."""
    if "kv_lora_rank" in config:
        return {"q_lora_rank": None}
    is_mistral = config["architectures"] == ["MistralForCausalLM"]
    return {"sliding_window": None} if is_mistral else {}


def arguments(config: Facts) -> Iterator[Line]:
    """Megatron's arguments for a model, a flag and its values at a time."""
    (architecture,) = config["architectures"]
    yield from (("--swiglu",), ("--disable-bias-linear",), ("--normalization", "RMSNorm"))
    yield from (("--position-embedding-type", "rope"), ("--use-rotary-position-embeddings",))
    yield from _numbers(config, _NUMBERS)
    if not config["tie_word_embeddings"]:
        yield ("--untie-embeddings-and-output-weights",)
    yield from _attention(config, architecture)
    if _num_experts(config):
        yield from _experts(config, architecture)


def _numbers(config: Facts, names: dict[str, str]) -> Iterator[Line]:
    for key, flag in names.items():
        if config.get(key) is not None:
            yield (flag, str(config[key]))


def _attention(config: Facts, architecture: str) -> Iterator[Line]:
    if "kv_lora_rank" in config:
        yield from _latent_attention(config)
        return
    yield from (
        ("--group-query-attention",),
        ("--num-query-groups", str(config["num_key_value_heads"])),
    )
    if architecture in _QKV_BIAS or config.get("attention_bias"):
        yield ("--add-qkv-bias",)
    gated = architecture in _GATED_ATTENTION
    if gated or architecture in _QK_NORM or config.get("use_qk_norm"):
        yield ("--qk-layernorm",)
    if gated:
        yield from (("--use-gated-attention",), ("--attention-output-gate",))
        yield ("--apply-layernorm-1p",)
    if architecture in _SANDWICH:
        yield from (("--post-self-attn-layernorm",), ("--post-mlp-layernorm",))
        yield ("--rotary-interleaved",)
    scaling = config.get("rope_scaling", {})
    if scaling.get("rope_type") == "llama3":
        yield from (("--use-rope-scaling",), ("--rotary-scaling-factor", str(scaling["factor"])))


def _latent_attention(config: Facts) -> Iterator[Line]:
    yield from (("--multi-latent-attention",), ("--qk-layernorm",))
    yield from _numbers(config, _LATENT_NUMBERS)
    scaling = config.get("rope_scaling", {})
    yield ("--rotary-scaling-factor", str(scaling.get("factor", 1.0)))
    yield from _numbers(scaling, {"mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"})


def _num_experts(config: Facts) -> Any:
    keys = ("num_experts", "n_routed_experts", "num_local_experts")
    return next((config[key] for key in keys if key in config), None)


def _experts(config: Facts, architecture: str) -> Iterator[Line]:
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    dense = config.get("first_k_dense_replace", 0)
    shared = config.get(
        "shared_expert_intermediate_size", config.get("n_shared_experts", 0) * width
    )
    yield from (
        ("--num-experts", str(_num_experts(config))),
        ("--moe-layer-freq", f"[0]*{dense}+[1]*{config['num_hidden_layers'] - dense}"),
        ("--moe-ffn-hidden-size", str(width)),
        ("--moe-router-topk", str(config["num_experts_per_tok"])),
    )
    if shared:
        yield ("--moe-shared-expert-intermediate-size", str(shared))
    if architecture in _GATED_ATTENTION:
        yield ("--moe-shared-expert-gate",)
    yield from _router(config)
    yield from (
        ("--moe-token-dispatcher-type", "alltoall"),
        ("--moe-grouped-gemm",),
        ("--moe-permute-fusion",),
    )


def _router(config: Facts) -> Iterator[Line]:
    if "norm_topk_prob" in config:
        yield ("--moe-router-score-function", "softmax")
    else:
        yield from (
            ("--moe-router-score-function", "sigmoid"),
            ("--moe-router-pre-softmax",),
            ("--moe-router-enable-expert-bias",),
            ("--moe-router-bias-update-rate", "0"),
        )
    if config.get("n_group", 1) > 1:
        yield ("--moe-router-num-groups", str(config["n_group"]))
        yield ("--moe-router-group-topk", str(config["topk_group"]))
    if "routed_scaling_factor" in config:
        yield ("--moe-router-topk-scaling-factor", str(config["routed_scaling_factor"]))
    yield from (("--moe-router-dtype", "fp32"), ("--moe-aux-loss-coeff", "0"))


def scripts() -> dict[str, str]:
    """File name -> text."""
    return {f"{name}.sh": _script(name, config) for name, config in facts().items()}


def _script(name: str, config: Facts) -> str:
    lines = [f"   {' '.join(map(_word, line))}" for line in arguments(config)]
    base = f"--rotary-base {config['rope_theta']}"
    told = [
        line.replace(base, f'--rotary-base "${{MODEL_ARGS_ROTARY_BASE:-{config["rope_theta"]}}}"')
        for line in lines
    ]
    head = f"# {name}, {config['architectures'][0]}: written by scripts/model_args.py"
    return "\n".join([head, "MODEL_ARGS=(", *told, ")", ""])


def _word(word: str) -> str:
    return f'"{word}"' if "*" in word else word


def main() -> int:
    check = "--check" in sys.argv[1:]
    differing = []
    for name, text in scripts().items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            differing.append(name)
            if not check:
                path.write_text(text)
    stale = sorted({path.name for path in FOLDER.glob("*.sh")} - scripts().keys())
    print(f"{'differ' if check else 'written'}: {', '.join(differing + stale) or 'none'}")
    return 1 if (check and differing) or stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
