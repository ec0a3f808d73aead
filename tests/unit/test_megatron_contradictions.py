"""Megatron's flags against a model's config.json: what contradicts it, and what cannot be computed
of it, is refused."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.megatron import flag
from agentrl.errors import ConfigError
from agentrl.models import Architecture
from agentrl.models.registry import describe_model, families, open_model
from tests.unit.megatron_flags import QWEN3, architecture, settings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"num_layers": 28}, ["--num-layers", "28", "36"]),
        ({"hidden_size": 2048}, ["--hidden-size", "2048", "4096"]),
        ({"ffn_hidden_size": 1024}, ["--ffn-hidden-size", "1024", "12288"]),
        ({"num_attention_heads": 16}, ["--num-attention-heads", "16", "32"]),
        ({"num_query_groups": 4}, ["--num-query-groups", "4", "8"]),
        ({"kv_channels": 64}, ["--kv-channels", "64", "128"]),
        ({"vocab_size": 1000}, ["--vocab-size", "1000", "151936"]),
        ({"max_position_embeddings": 128}, ["--max-position-embeddings", "128", "40960"]),
        ({"norm_epsilon": 1e-5}, ["--norm-epsilon", "1e-05", "1e-06"]),
        ({"add_qkv_bias": True}, ["--add-qkv-bias is True", "False"]),
        ({"rotary_base": 10000.0}, ["--rotary-base", "10000", "1000000"]),
        ({"untie_embeddings_and_output_weights": False}, ["--untie-embeddings", "False", "True"]),
        ({"qk_layernorm": False}, ["--qk-layernorm"]),
        ({"rotary_percent": 0.5}, ["--rotary-percent", "0.5", "1.0"]),
        ({"rotary_interleaved": True}, ["--rotary-interleaved is True", "False"]),
        ({"post_self_attn_layernorm": True}, ["--post-self-attn-layernorm is True"]),
        ({"post_mlp_layernorm": True}, ["--post-mlp-layernorm is True"]),
        ({"num_experts": 8}, ["--num-experts", "8", "nothing of it"]),
        ({"moe_aux_loss_coeff": 0.1}, ["has no experts", "--moe-aux-loss-coeff 0.1"]),
        ({"tensor_model_parallel_size": 16}, ["8 key-value heads", "16"]),
        ({"pipeline_model_parallel_size": 16}, ["36 layers", "--pipeline-model-parallel-size 16"]),
        (
            {"decoder_last_pipeline_num_layers": 4},
            ["--decoder-last-pipeline-num-layers", "is one stage"],
        ),
    ],
)
def test_a_flag_that_contradicts_the_checkpoint_is_refused_with_both_numbers(
    flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        architecture().check(settings(16, **flags))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_all_that_contradicts_the_checkpoint_is_told_at_once() -> None:
    wrong = {"num_layers": 3, "hidden_size": 7, "q_lora_rank": 24, "moe_aux_loss_coeff": 0.1}
    layout = {"tensor_model_parallel_size": 16, "pipeline_model_parallel_size": 16}
    with pytest.raises(ConfigError) as refusal:
        architecture().check(settings(256, **wrong, **layout))
    said = str(refusal.value).splitlines()
    assert len(said) == len(set(said)) == 6
    for words in (*map(flag, wrong), "key-value heads cannot be divided", "36 layers cannot be"):
        assert len([line for line in said if words in line]) == 1, words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["MixtralForCausalLM"]},
            ["MixtralForCausalLM", "Qwen3ForCausalLM", "--model-family"],
        ),
        ({"architectures": None}, ["[]"]),
        ({"hidden_act": "gelu"}, ["hidden_act", "gelu", "silu"]),
        ({"use_sliding_window": True}, ["use_sliding_window"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor 0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor 0.5"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, ["longrope", "yarn"]),
    ],
)
def test_a_checkpoint_that_would_be_computed_wrongly_is_refused(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        architecture(**changes)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_a_config_without_a_needed_number_names_it(tmp_path: Path) -> None:
    without = {key: value for key, value in QWEN3.items() if key != "vocab_size"}
    with pytest.raises(ConfigError, match="vocab_size"):
        describe_model(without, None, source="config.json")
    with pytest.raises(ConfigError, match="is no Hugging Face model directory"):
        open_model(tmp_path, None)


@pytest.mark.parametrize(
    ("vocab_size", "ranks", "divisible_by", "padded"),
    [(151_936, 8, 1, 151_936), (97, 2, 1, 98), (151_936, 8, 128, 152_576), (1000, 1, 64, 1024)],
)
def test_a_vocabulary_is_padded_to_equal_shares(
    vocab_size: int, ranks: int, divisible_by: int, padded: int
) -> None:
    flags = settings(tensor_model_parallel_size=ranks, make_vocab_size_divisible_by=divisible_by)
    model = architecture(vocab_size=vocab_size)
    model.check(flags)
    assert model.padded_vocab_size(flags) == padded


def test_a_padding_that_leaves_a_rank_without_a_word_is_refused_with_its_numbers() -> None:
    flags = settings(tensor_model_parallel_size=2, make_vocab_size_divisible_by=64)
    words = r"60 vocabulary entries, padded to 128, .* 2 tensor ranks.*divisible-by 64"
    with pytest.raises(ConfigError, match=words):
        architecture(vocab_size=60).check(flags)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


DEEPSEEK_V3: dict[str, Any] = {
    **families()["deepseek-v3"].tiny,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}


QWEN3_NEXT = dict(families()["qwen3-next"].tiny)


def latent(**changes: Any) -> Architecture:
    return describe_model(DEEPSEEK_V3 | changes, None, source="config.json").architecture


def test_flags_of_latent_attention_that_contradict_the_checkpoint_are_refused() -> None:
    told: dict[str, Any] = {
        "multi_latent_attention": True,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_head_dim": 16,
        "qk_pos_emb_head_dim": 8,
        "v_head_dim": 12,
        "rotary_scaling_factor": 40.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    # --kv-channels and --add-qkv-bias mean nothing to latent attention, and scripts pass them.
    latent().check(settings(**told, qk_layernorm=True, kv_channels=128, add_qkv_bias=True))
    for name, value in told.items():
        other = not value if isinstance(value, bool) else value + 1
        with pytest.raises(ConfigError, match=rf"{flag(name)} is {other} but .* {value} "):
            latent().check(settings(**{name: other}))
        with pytest.raises(ConfigError, match=rf"{flag(name)} is {value} but .*Qwen3"):
            architecture().check(settings(**{name: value}))
    # Moonlight's script: a factor of 1 leaves magnitudes without a meaning.
    plain = latent(rope_scaling=None, q_lora_rank=None)
    plain.check(settings(rotary_scaling_factor=1.0, mscale=1.0, mscale_all_dim=1.0))
    with pytest.raises(ConfigError, match=r"--q-lora-rank is 24 but .* nothing of it"):
        plain.check(settings(q_lora_rank=24))


def test_flags_of_delta_nets_and_gated_attention_that_contradict_the_checkpoint_are_refused() -> (
    None
):
    told = ("attention_output_gate", "use_gated_attention", "apply_layernorm_1p")
    gated = describe_model(QWEN3_NEXT, None, source="config.json").architecture
    gated.check(settings(**dict.fromkeys((*told, "moe_shared_expert_gate"), True)))
    for name in (*told, "moe_shared_expert_gate"):
        with pytest.raises(ConfigError, match=rf"{flag(name)} is False but .* True "):
            gated.check(settings(**{name: False}))
        with pytest.raises(ConfigError, match=rf"{flag(name)} is True but .*Qwen3"):
            architecture().check(settings(**{name: True}))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            {"tensor_model_parallel_size": 4, "sequence_parallel": True},
            r"2 key heads of a delta net cannot be divided by --tensor-model-parallel-size 4 \(",
        ),
        (
            {"context_parallel_size": 4},
            "2 key heads .* by --tensor-model-parallel-size 1 x --context-parallel-size 4",
        ),
        (
            {
                "tensor_model_parallel_size": 2,
                "sequence_parallel": True,
                "context_parallel_size": 2,
            },
            "2 key heads .* by --tensor-model-parallel-size 2 x --context-parallel-size 2",
        ),
    ],
)
def test_a_layout_that_cuts_a_head_of_a_delta_net_apart_is_refused(
    layout: dict[str, Any], words: str
) -> None:
    config = QWEN3_NEXT | {"num_key_value_heads": 4}
    described = describe_model(config, None, source="config.json").architecture
    described.check(settings(4, context_parallel_size=2))
    with pytest.raises(ConfigError, match=words):
        described.check(settings(4, **layout))


def test_latent_attention_on_several_tensor_ranks_needs_sequence_parallelism() -> None:
    latent().check(settings(tensor_model_parallel_size=2, sequence_parallel=True))
    with pytest.raises(ConfigError, match="--tensor-model-parallel-size 2 needs --sequence-paral"):
        latent().check(settings(tensor_model_parallel_size=2))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mscale_all_dim": None, "mscale": 0.7}, "mscale 0.7 and mscale_all_dim None"),
        ({"mscale": None}, "mscale None and mscale_all_dim 1.0"),
        ({"truncate": False}, "truncate True"),
        ({"type": "linear"}, "rope type default, and yarn"),
    ],
)
def test_rotary_scaling_that_engines_read_otherwise_is_refused_with_latent_attention(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        latent(rope_scaling=DEEPSEEK_V3["rope_scaling"] | changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_interleave", False),
        ("num_key_value_heads", 2),
        ("moe_layer_freq", 2),
        ("attention_bias", True),
    ],
)
def test_latent_attention_of_another_kind_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{key} {value} is not supported"):
        latent(**{key: value})


def test_flags_of_scaled_rotary_positions_say_what_the_checkpoint_says() -> None:
    told: dict[str, Any] = {
        "use_rope_scaling": True,
        "rope_scaling_factor": 32.0,
        "rotary_scaling_factor": 32.0,
    }
    architecture(rope_scaling=LLAMA3).check(settings(**told))
    architecture().check(settings(use_rope_scaling=False, rotary_scaling_factor=1.0))


@pytest.mark.parametrize(
    ("scaling", "flags", "words"),
    [
        (LLAMA3, {"use_rope_scaling": False}, ["--use-rope-scaling is False", "True"]),
        (LLAMA3, {"rope_scaling_factor": 8.0}, ["--rope-scaling-factor is 8.0", "32.0"]),
        (LLAMA3, {"rotary_scaling_factor": 8.0}, ["--rotary-scaling-factor is 8.0", "32.0"]),
        (None, {"use_rope_scaling": True}, ["--use-rope-scaling is True", "False"]),
    ],
)
def test_flags_of_scaled_rotary_positions_that_contradict_the_checkpoint_are_refused(
    scaling: Any, flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        architecture(rope_scaling=scaling).check(settings(**flags))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_rotary_parameters_are_found_in_old_and_new_files() -> None:
    new = architecture(rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    assert (architecture().rotary_base, new.rotary_base) == (1e6, 5e5)
