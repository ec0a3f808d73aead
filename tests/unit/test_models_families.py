"""What single families refuse of a config.json, and what its keys mean to them."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig
from agentrl.config.weights import num_parameters
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.registry import describe_model, families, open_model
from agentrl.models.shapes import shapes_of
from agentrl.models.stacks import EXPERTS_STACKED, taken_apart

pytestmark = pytest.mark.slow

ROPE = families()["qwen3-5"].tiny["rope_parameters"]


def read(family: str, **changes: Any) -> Architecture:
    """The tiny member with other keys; None takes a key out."""
    config = {**families()[family].tiny, **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    return describe_model(kept, None, source="config.json").architecture


@pytest.mark.parametrize(
    ("family", "usual"),
    [("glm4", 0.5), ("glm4-moe", 0.5), ("llama", 1.0), ("minimax-m2", 0.5)],
)
def test_the_share_of_a_head_that_is_rotated_is_found_wherever_it_is_said(
    family: str, usual: float
) -> None:
    assert read(family, partial_rotary_factor=None).rotary_percent == usual
    nested = {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": usual}}
    assert read(family, partial_rotary_factor=None, **nested).rotary_percent == usual


@pytest.mark.parametrize("family", ["glm4", "glm4-moe"])
def test_a_bias_of_glm_is_one_of_queries_keys_and_values(family: str) -> None:
    assert read(family, attention_bias=True).add_qkv_bias
    assert not read(family, attention_bias=False).add_qkv_bias


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_qk_norm": False}, "use_qk_norm is False; it must be True"),
        ({"use_qk_norm": None}, "use_qk_norm is missing; it must be True"),
        ({"use_routing_bias": None}, "use_routing_bias is missing; it must be"),
        ({"scoring_func": "softmax"}, "scoring_func is softmax; it must be"),
        ({"qk_norm_type": "per_head"}, "qk_norm_type per_head is not supported, only per_layer"),
        ({"shared_intermediate_size": 64}, "shared_intermediate_size 64 is not supported, only 0"),
        ({"attn_type_list": [1, 0]}, r"attn_type_list with \{0\} is not supported, only 1"),
        ({"rotary_dim": None}, "lacks 'rotary_dim'"),
        ({"partial_rotary_factor": 1.0}, "1.0 is not supported beside a rotary_dim of 8 of 16"),
    ],
)
def test_a_minimax_that_engine_or_learner_would_compute_otherwise_is_refused_by_its_key(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read("minimax-m2", **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"full_attention_interval": None}, "full_attention_interval is missing"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_parameters": {"rope_theta": 7.0}}, "rope_theta 50000.0 beside 7.0 in rope_param"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.25 beside"),
        ({"output_gate_type": "sigmoid"}, r"output_gate_type \{'sigmoid'\} is not supported"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not supported, only a multi"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types .* is not supported, only full_a"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers \[0\] with decoder_sparse_step 1 is not"),
        ({"decoder_sparse_step": 2}, "with decoder_sparse_step 2 is not supported"),
    ],
)
def test_a_qwen3_next_that_engine_or_learner_would_compute_otherwise_is_refused_by_its_key(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read("qwen3-next", **changes)


@pytest.mark.parametrize("family", ["qwen3-5", "qwen3-5-moe", "qwen3-5-vl", "qwen3-5-moe-vl"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"full_attention_interval": None}, "full_attention_interval is missing"),
        ({"rope_theta": None, "rope_parameters": None}, "rope_theta is missing"),
        ({"rope_theta": 7.0}, "rope_theta 7.0 beside 50000.0 in rope_parameters is not"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 beside 0.25 in rope_param"),
        ({"rope_parameters": {**ROPE, "rope_type": "yarn"}}, "rope type yarn is not supported be"),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported, only True"),
        ({"is_causal": False}, "is_causal False is not supported, only True"),
        ({"norm_topk_prob": False}, "norm_topk_prob False is not supported, only True"),
        ({"output_gate_type": "sigmoid"}, r"output_gate_type \{'sigmoid'\} is not supported"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types .* is not supported, only full_a"),
    ],
)
def test_a_qwen3_5_that_engine_or_learner_would_compute_otherwise_is_refused_by_its_key(
    family: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read(family, **changes)


#: What the config.json of the smaller gpt-oss says, as it is published; the larger has 36 layers
#: of 128 experts.
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "pad_token_id": 199999,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


@pytest.mark.parametrize(
    ("layers", "experts", "billions"), [(24, 32, 20.9), (36, 128, 116.8)], ids=["20b", "120b"]
)
def test_a_published_gpt_oss_has_the_layers_and_numbers_that_it_is_named_for(
    layers: int, experts: int, billions: float
) -> None:
    kinds = GPT_OSS_20B["layer_types"][:2] * (layers // 2)  # type: ignore[index]
    sizes = {"num_hidden_layers": layers, "num_local_experts": experts, "layer_types": kinds}
    model = describe_model(GPT_OSS_20B | sizes, None, source="config.json")
    told = msgspec.structs.asdict(model.architecture)
    assert told["window_size"] == (127, 0)
    assert told["window_attn_skip_freq"] == [1, 0] * (layers // 2)
    assert told["activation_func_clamp_value"] == 7.0
    assert model.architecture.rope.magnitude == pytest.approx(1.3466, abs=1e-4)  # type: ignore[union-attr]
    assert (num_parameters(shapes_of(model)) or 0) / 1e9 == pytest.approx(billions, abs=0.05)
    without = {key: value for key, value in (GPT_OSS_20B | sizes).items() if key != "layer_types"}
    assert describe_model(without, None, source="config.json").architecture == model.architecture


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"swiglu_alpha": 1.5}, r"swiglu_alpha 1.5 is not supported, only 1.702"),
        ({"hidden_act_alpha": 1.5}, r"hidden_act_alpha 1.5 is not supported, only 1.702"),
        ({"swiglu_limit": None}, "lacks 'swiglu_limit'"),
        ({"attention_bias": False}, "attention_bias False is not supported, only True"),
        ({"sliding_window": 0}, "sliding_window 0 is not supported"),
        ({"sliding_window": None}, "lacks 'sliding_window'"),
        ({"layer_types": ["full_attention"]}, r"layer_types .* for each of 2 layers"),
        ({"layer_types": ["chunked", "full_attention"]}, "layer_types .* is not supported"),
    ],
)
def test_a_gpt_oss_that_engine_or_learner_would_compute_otherwise_is_refused_by_its_key(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        read("gpt-oss", **changes)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tensor_model_parallel_size": 2, "sequence_parallel": True}, "size 2 would cut them"),
        ({"disable_bias_linear": True}, "--disable-bias-linear is True but .* says False"),
        ({"swiglu": True}, "--swiglu is True but .* says False"),
    ],
)
def test_what_megatron_would_compute_otherwise_of_a_gpt_oss_is_refused(
    given: dict[str, Any], words: str
) -> None:
    run = RunConfig(actor_num_gpus_per_node=2, megatron=given)
    with pytest.raises(ConfigError, match=words):
        read("gpt-oss").check(MegatronSettings.from_config(run))


@pytest.mark.parametrize("family", ["deepseek-v3", "glm4-moe", "glm4-moe-lite", "minimax-m2"])
def test_one_expert_for_each_token_that_a_sigmoid_chooses_is_refused(family: str) -> None:
    """Its score is normalized to 1 in transformers and engines; megatron-core keeps it as it is."""
    one = {"num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    with pytest.raises(ConfigError, match="1 expert for each token is not supported beside sigm"):
        read(family, **one)
    assert read(family, **one | {"num_experts_per_tok": 2}).flags()["moe_router_topk"] == 2
    assert read("qwen3-moe", num_experts_per_tok=1).flags()["moe_router_topk"] == 1


def test_rotary_parameters_that_stand_under_two_keys_and_differ_are_refused() -> None:
    """transformers takes rope_scaling and nothing of rope_parameters: of a file that it saved
    again, in which somebody has added YaRN, also the base would be another."""
    saved = {"rope_theta": 1e6, "rope_type": "default"}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    for beside in (yarn, yarn | {"rope_theta": 1e6}, {"type": "default"}):
        words = rf"rope_scaling .*{beside['type']}.* beside rope_parameters .*1000000\.0.* is not"
        with pytest.raises(ConfigError, match=words):
            read("qwen3", rope_theta=None, rope_parameters=saved, rope_scaling=beside)
    same = read("qwen3", rope_parameters={"rope_type": "yarn", **yarn}, rope_scaling=yarn)
    assert (same.rotary_base, same.rope.factor) == (50_000.0, 4.0)
    assert read("qwen3", rope_parameters=saved, rope_scaling={}).rotary_base == 1e6


def test_the_rotary_base_of_qwen3_5_may_stand_where_published_files_have_it() -> None:
    assert read("qwen3-5-vl", rope_theta=None).rotary_base == 50_000.0
    assert read("qwen3-5-moe", intermediate_size=None).ffn_hidden_size == 32


def test_what_stands_beside_a_decoder_is_a_passenger() -> None:
    for family, prefix in (("qwen3-next", "model."), ("qwen3-5-moe-vl", "model.language_model.")):
        model = describe_model(dict(families()[family].tiny), None, source="config.json")
        assert model.is_passenger("mtp.layers.0.self_attn.q_proj.weight")
        assert not model.is_passenger(f"{prefix}layers.0.linear_attn.out_proj.weight")
        assert model.is_passenger("model.visual.pos_embed.weight") == family.endswith("vl")
        assert not model.is_passenger("lm_head.weight")


def test_whether_the_head_of_a_model_that_sees_is_tied_stands_beside_its_text(
    tmp_path: Path,
) -> None:
    """There alone transformers and SGLang look for it."""
    tiny = dict(families()["qwen3-5-vl"].tiny)
    named = {"architectures": tiny.pop("architectures"), "vision_config": tiny.pop("vision_config")}
    for beside, inside in ((True, False), (False, True), (None, True)):
        told = {} if beside is None else {"tie_word_embeddings": beside}
        text = {"text_config": tiny | {"tie_word_embeddings": inside}}
        (tmp_path / "config.json").write_text(json.dumps(named | told | text))
        assert open_model(tmp_path, None).architecture.tied_embeddings == bool(beside)


def test_a_stack_of_experts_is_their_single_tensors() -> None:
    found = [*taken_apart("model.layers.0.mlp.experts.gate_up_proj", (2, 6, 4), EXPERTS_STACKED)]
    name = "model.layers.0.mlp.experts.{}.{}_proj.weight"
    assert found == [
        (name.format(expert, half), (3, 4), (expert, slice(first, first + 3)))
        for expert in range(2)
        for half, first in (("gate", 0), ("up", 3))
    ]
    for same in ("model.layers.0.mlp.experts.1.down_proj.weight", "model.norm.weight"):
        assert [*taken_apart(same, (6, 4), EXPERTS_STACKED)] == [(same, (6, 4), ())]
    uneven = ("model.layers.0.mlp.experts.gate_up_proj", (2, 5, 4))
    assert [*taken_apart(*uneven, EXPERTS_STACKED)] == [(*uneven, ())]
