"""Whether the arguments in a checkpoint of Megatron's are of the model: what Megatron does not read
may say anything."""

import json
from typing import Any

import pytest

from agentrl.config.command_line import read_flags
from agentrl.errors import ConfigError
from agentrl.models.architecture import Architecture
from agentrl.models.experts import Experts
from agentrl.models.latent import Latent
from agentrl.models.registry import describe_model, families
from agentrl.models.written import written_arguments
from scripts.model_args import arguments, facts
from tests.unit.test_slime_models import ARGUMENTS, OTHERWISE

FAMILIES = {name: each for each in families().values() for name in each.architectures}
NAMES = sorted(name for name, each in facts().items() if each["architectures"][0] in FAMILIES)
#: What slime's model files say and Megatron does not read of such a model.
UNREAD = {"kv_channels": 128, "add_qkv_bias": True}
SIGMOID = {"moe_router_pre_softmax": True}
#: What a checkpoint says of arguments that no launch script gave: Megatron's defaults.
DEFAULTS: dict[str, Any] = {
    "use_rope_scaling": False,
    "rope_scaling_factor": 8.0,
    "rotary_scaling_factor": 1.0,
    "position_embedding_type": "rope",
    "apply_layernorm_1p": False,
    "multi_latent_attention": False,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "swiglu": False,
    "quick_geglu": False,
    "squared_relu": False,
    "normalization": "LayerNorm",
    "moe_router_num_groups": None,
    "moe_router_group_topk": None,
    "moe_router_topk_scaling_factor": None,
    "moe_shared_expert_intermediate_size": None,
    "q_lora_rank": None,
}
LLAMA31 = {"use_rope_scaling": True, "rope_scaling_factor": 8.0}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
WRITTEN_YARN = {
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 32.0,
    "yarn_original_max_position_embeddings": 4096,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_correction_range_round_to_int": False,
}
#: Keys of config.json that a launch script says nothing of.
_OF_THE_FAMILY = (
    *("use_qk_norm", "use_routing_bias", "vision_config", "full_attention_interval"),
    *("scoring_func", "rotary_dim"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_conv_kernel_dim"),
)


def published(name: str, **other: Any) -> tuple[Architecture, dict[str, Any]]:
    """The architecture, `other` in its config.json, and the arguments of a launch script."""
    config = facts()[name] | other
    tiny = FAMILIES[config["architectures"][0]].tiny
    here = {key: value for key, value in tiny.items() if key in _OF_THE_FAMILY}
    if "rotary_dim" in here:
        here["rotary_dim"] = int(config["head_dim"] * config["partial_rotary_factor"])
    whole = here | {"max_position_embeddings": 4096} | config
    architecture = describe_model(whole, None, source="config.json").architecture
    given = read_flags([word for line in arguments(config) for word in line])
    return architecture, given.values["megatron"]


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_by_the_arguments_of_a_launch_script_is_of_the_model(name: str) -> None:
    architecture, given = published(name)
    unread: dict[str, Any] = UNREAD if isinstance(architecture, Latent) else {}
    if isinstance(architecture, Experts) and architecture.moe_router_score_function == "sigmoid":
        unread = unread | SIGMOID
    if isinstance(architecture, Latent) and architecture.rope_type == "rope":
        unread = unread | {"mscale_all_dim": 1.0}
    assert architecture.written_otherwise(DEFAULTS | given | unread) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_ours_says_what_its_model_is(name: str) -> None:
    architecture, _ = published(name)
    written = written_arguments(architecture)
    assert architecture.written_otherwise(DEFAULTS | written) == []
    assert json.loads(json.dumps(written)) == written  # plain values
    # Megatron compares these, or takes them with --use-checkpoint-args, without a default.
    needed = {"num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size"}
    assert needed | {"pipeline_model_parallel_size", "position_embedding_type"} <= written.keys()
    assert (written["add_bias_linear"], written["no_save_optim"]) == (False, True)
    if isinstance(architecture, Experts):  # slime's converter takes tensors apart by it
        assert written["num_experts"] == architecture.num_moe_experts
        assert len(written["moe_layer_freq"]) == written["num_layers"]


@pytest.mark.parametrize("scaling", [YARN, {"rope_type": "linear", "factor": 2.0}])
def test_a_checkpoint_of_ours_says_how_its_positions_are_scaled(scaling: dict[str, Any]) -> None:
    architecture, _ = published("qwen3-4B", rope_scaling=scaling)
    written = written_arguments(architecture)
    assert architecture.written_otherwise(DEFAULTS | written) == []
    plain, _ = published("qwen3-4B")
    assert len(plain.written_otherwise(DEFAULTS | written)) == 1


@pytest.mark.parametrize("name", sorted(({*NAMES} & ARGUMENTS.keys()) - OTHERWISE.keys()))
def test_a_checkpoint_of_slimes_says_what_its_script_leaves_out_by_default(name: str) -> None:
    architecture, _ = published(name)
    given = read_flags(ARGUMENTS[name]).values["megatron"]
    assert architecture.written_otherwise(DEFAULTS | given) == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("qwen3-4B", {"kv_channels": 64}),
        ("qwen3-30B-A3B", {"moe_router_pre_softmax": True}),
        ("deepseek-v3", {"kv_lora_rank": 256, "moe_router_topk": 4}),
        ("moonlight", {"v_head_dim": 64}),
        ("moonlight", {"q_lora_rank": 1536}),
        ("glm4.5-106B-A12B", {"moe_router_num_groups": 8, "moe_router_group_topk": 2}),
        ("minimax-m2", {"moe_router_topk_scaling_factor": 2.5}),
        ("minimax-m2", {"moe_shared_expert_intermediate_size": 1536}),
        ("deepseek-v3", {"moe_router_num_groups": None, "moe_router_group_topk": None}),
        ("deepseek-v3", {"moe_router_topk_scaling_factor": None}),
        ("qwen3-4B", {"swiglu": False, "quick_geglu": True}),
        ("qwen3-4B", {"swiglu": False, "squared_relu": True}),
        ("moonlight", {"normalization": "LayerNorm"}),
        ("qwen3-4B", {"position_embedding_type": "none"}),
        ("deepseek-v3", {"position_embedding_type": "learned_absolute"}),
    ],
)
def test_what_megatron_reads_is_compared(name: str, other: dict[str, Any]) -> None:
    """What a model has nothing of is compared too, by what it would be without effect."""
    architecture, given = published(name)
    told = architecture.written_otherwise(given | other)
    assert sorted(line.split()[0] for line in told) == sorted(other)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("minimax-m2", {"moe_router_num_groups": 1, "moe_router_group_topk": 1}),
        ("minimax-m2", {"moe_router_topk_scaling_factor": 1.0}),
        ("minimax-m2", {"moe_shared_expert_intermediate_size": 0}),
        ("qwen3-4B", {"position_embedding_type": "mrope"}),
    ],
)
def test_what_has_no_effect_is_no_difference(name: str, same: dict[str, Any]) -> None:
    architecture, given = published(name)
    assert architecture.written_otherwise(given | same) == []


@pytest.mark.parametrize(
    ("name", "written", "lines"),
    [
        ("llama3.1-8B-Instruct", {}, ["use_rope_scaling False instead of True"]),
        (
            "llama3.1-8B-Instruct",
            {"use_rope_scaling": True, "rope_scaling_factor": 32.0},
            ["rope_scaling_factor 32.0 instead of 8.0"],
        ),
        ("qwen3-4B", LLAMA31, ["use_rope_scaling True instead of False"]),
        (
            "qwen3-4B",
            {"rotary_seq_len_interpolation_factor": 4},
            ["rotary_seq_len_interpolation_factor 4 instead of 1.0"],
        ),
        ("qwen3-4B", WRITTEN_YARN, ["position_embedding_type yarn instead of rope"]),
        ("qwen3-4B", {"apply_layernorm_1p": True}, ["apply_layernorm_1p True instead of False"]),
        (
            "qwen3-4B",
            {"multi_latent_attention": True},
            ["multi_latent_attention True instead of False"],
        ),
    ],
)
def test_positions_and_norms_of_the_same_shapes_are_compared(
    name: str, written: dict[str, Any], lines: list[str]
) -> None:
    architecture, given = published(name)
    for key in (*LLAMA31, "rotary_scaling_factor"):
        given.pop(key, None)
    assert architecture.written_otherwise(DEFAULTS | given | written) == lines


def test_each_number_of_yarn_is_compared() -> None:
    architecture, given = published("qwen3-4B", rope_scaling=YARN)
    assert architecture.written_otherwise(DEFAULTS | given) == []  # its weights know no length
    assert architecture.written_otherwise(DEFAULTS | given | WRITTEN_YARN) == []
    other = {
        "yarn_rotary_scaling_factor": 4.0,
        "yarn_original_max_position_embeddings": 8192,
        "yarn_beta_fast": 16.0,
        "yarn_beta_slow": 2.0,
        "yarn_correction_range_round_to_int": True,
    }
    told = architecture.written_otherwise(DEFAULTS | given | WRITTEN_YARN | other)
    assert [line.split()[0] for line in told] == [*other]


def test_a_size_that_a_delta_net_must_have_is_named_where_it_lacks() -> None:
    config = {"max_position_embeddings": 4096, **facts()["qwen3-next-80B-A3B"]}
    with pytest.raises(ConfigError, match=r"config\.json lacks 'linear_\w+', which a Qwen3Next"):
        describe_model(config, None, source="config.json")
