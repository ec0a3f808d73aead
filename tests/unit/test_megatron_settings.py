"""What the learner accepts of Megatron's flags and of a config.json, and how it refuses others."""

import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from agentrl.config.command_line import read_flags
from agentrl.config.megatron import MegatronSettings, flag
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models import Architecture
from agentrl.models.registry import describe_model, families, open_model

QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def settings(ranks: int = 8, **megatron: Any) -> MegatronSettings:
    return MegatronSettings.from_config(RunConfig(actor_num_gpus_per_node=ranks, megatron=megatron))


def architecture(**changes: Any) -> Architecture:
    return describe_model(QWEN3 | changes, None, source="config.json").architecture


def test_the_flags_that_describe_qwen3_8b_to_megatron_are_accepted_unchanged() -> None:
    flags = settings(
        swiglu=True,
        num_layers=36,
        hidden_size=4096,
        ffn_hidden_size=12288,
        num_attention_heads=32,
        group_query_attention=True,
        num_query_groups=8,
        use_rotary_position_embeddings=True,
        disable_bias_linear=True,
        normalization="RMSNorm",
        norm_epsilon=1e-6,
        rotary_base=1000000,
        vocab_size=151936,
        kv_channels=128,
        qk_layernorm=True,
        untie_embeddings_and_output_weights=True,
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        pipeline_model_parallel_size=1,
        context_parallel_size=1,
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        accumulate_allreduce_grads_in_fp32=True,
        attention_softmax_in_fp32=True,
    )
    architecture().check(flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size is not a Megatron setting"]),
        ({"moe_z_loss_coeff": 0.1}, ["--moe-z-loss-coeff", "the loss has no such term"]),
        ({"recompute_modules": ["mlp"]}, ["--recompute-granularity selective"]),
        (
            {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
            ["--recompute-modules", "moe_act", "core_attn, layernorm"],
        ),
        ({"cp_comm_type": "p2p"}, ["--cp-comm-type", "p2p", "all_gather"]),
        (
            {"microbatch_group_size_per_virtual_pipeline_stage": 4},
            ["--microbatch-group-size-per-virtual", "groups of --pipeline-model-parallel-size"],
        ),
        ({"moe_layer_freq": "[0]*1+[2]"}, ["--moe-layer-freq", "[0]*1+[2]"]),
        ({"moe_layer_freq": ""}, ["--moe-layer-freq cannot be ''", "as in [0]*1+[1]*47"]),
        ({"pipeline_model_parallel_layout": "E t"}, ["cannot be 'E t'", "as in E|ttt|ttL"]),
        ({"moe_router_dtype": "fp64"}, ["--moe-router-dtype", "fp64", "fp32"]),
        (
            {"moe_aux_loss_coeff": 0.1, "moe_router_load_balancing_type": "seq_aux_loss"},
            ["--moe-aux-loss-coeff 0.1", "--moe-router-load-balancing-type aux_loss"],
        ),
        ({"tensor_model_parallel_size": 0}, ["--tensor-model-parallel-size", "0", ">= 1"]),
        ({"tensor_model_parallel_size": "2"}, ["--tensor-model-parallel-size", "'2'"]),
        ({"tensor_model_parallel_size": 3}, ["8 learner ranks", "3", "--actor-num-gpus-per-node"]),
        ({"hidden_dropout": 0.1}, ["--hidden-dropout", "0.1"]),
        ({"attention_dropout": 0.1}, ["--attention-dropout", "0.1"]),
        ({"normalization": "LayerNorm"}, ["--normalization", "LayerNorm", "RMSNorm"]),
        ({"position_embedding_type": "none"}, ["--position-embedding-type", "none", "rope"]),
        ({"optimizer": "sgd"}, ["--optimizer", "sgd", "adam"]),
        ({"recompute_granularity": "most"}, ["most", "full, selective"]),
        ({"recompute_granularity": "full"}, ["--recompute-method", "--recompute-num-layers"]),
        ({"recompute_num_layers": 1}, ["--recompute-granularity full"]),
        ({"optimizer_cpu_offload": True}, ["needs --use-precision-aware-optimizer"]),
        ({"overlap_cpu_optimizer_d2h_h2d": True}, ["needs --optimizer-cpu-offload"]),
        ({"optimizer_offload_fraction": 2}, ["--optimizer-offload-fraction", "2", "<= 1"]),
        ({"overlap_param_gather": True}, ["--use-distributed-optimizer", "--overlap-grad-reduce"]),
    ],
)
def test_a_setting_that_cannot_run_is_refused_with_its_flag(
    flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(**flags)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_on_cuda_an_optimizer_on_the_host_is_distributed_and_of_bf16_weights() -> None:
    own = {"use_precision_aware_optimizer": True, "use_distributed_optimizer": False}
    with pytest.raises(ConfigError, match=r"aware-optimizer needs --use-distributed-optimizer"):
        MegatronSettings.from_config(RunConfig(device="cuda", megatron=own))
    MegatronSettings.from_config(RunConfig(device="cpu", megatron=own))
    offloaded = {**own, "use_distributed_optimizer": True, "optimizer_cpu_offload": True}
    with pytest.raises(ConfigError, match=r"--optimizer-cpu-offload needs --bf16: "):
        MegatronSettings.from_config(RunConfig(device="cuda", megatron=offloaded))
    MegatronSettings.from_config(RunConfig(device="cuda", megatron={**offloaded, "bf16": True}))
    MegatronSettings.from_config(RunConfig(device="cpu", megatron=offloaded))


def given_as_flags(name: str, value: Any) -> Any:
    """What the learner is told when its setting `name` is given on the command line."""
    given = value if isinstance(value, list) else [] if value is True else [value]
    words = [flag(name), *map(str, given)]
    if value is False:
        words = [flag(name).replace("--", "--no-", 1)]
    read = read_flags(words).values["megatron"]
    assert read.keys() == {name}
    return read[name]


TEXTS = {
    "moe_layer_freq": ["[0]*1+[1]*3", "2"],
    "pipeline_model_parallel_layout": ["Et,t|(tt|)*2t*3L"],
}


def examples(name: str) -> list[Any]:
    """Values that the type of a setting allows."""
    types: list[Any] = [typing.get_type_hints(MegatronSettings)[name]]
    found: list[Any] = []
    while types:
        kind = types.pop()
        if typing.get_origin(kind) is Literal:
            found += typing.get_args(kind)
        elif typing.get_origin(kind) is list:
            found.append(list(typing.get_args(typing.get_args(kind)[0])))
        elif kind is bool:
            found += [True, False]
        elif kind is str:
            found += TEXTS[name]
        elif kind in (int, float):
            found += [kind(0 if name.endswith("dropout") else 1)]
        else:
            types += typing.get_args(kind)
    return found


@pytest.mark.parametrize("name", MegatronSettings.__struct_fields__)
def test_every_setting_of_the_learner_has_a_flag_that_reaches_it(name: str) -> None:
    assert examples(name)
    for value in examples(name):
        told = msgspec.convert({name: given_as_flags(name, value)}, MegatronSettings)
        assert getattr(told, name) == value


def test_sequence_parallelism_is_off_on_one_tensor_parallel_rank() -> None:
    assert not settings(sequence_parallel=True).uses_sequence_parallel
    assert settings(sequence_parallel=True, tensor_model_parallel_size=2).uses_sequence_parallel


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


def test_another_megatron_core_is_refused_by_its_number(tmp_path: Path) -> None:
    other = tmp_path / "megatron_core-0.17.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.17.0\n")
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from agentrl.learner.megatron import compat\ncompat.install()",
        ],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode != 0
    assert "megatron-core 0.17.0 is installed, agentrl needs exactly 0.16.1" in run.stderr


def test_the_learner_starts_without_transformers_and_without_torchs_compiler() -> None:
    code = (
        "import sys\n"
        "from agentrl.learner.megatron import MegatronBackend, compat\n"
        "compat.install()\n"
        "heavy = {'transformers', 'torch._dynamo', 'torch._inductor'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
