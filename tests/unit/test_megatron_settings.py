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
from agentrl.models.registry import describe_model, open_model

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
        attention_backend="flash",
    )
    architecture().check(flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size", "--tensor-model-parallel-size"]),
        ({"num_experts": 8}, ["--num-experts"]),
        ({"tensor_model_parallel_size": 0}, ["--tensor-model-parallel-size", "0", ">= 1"]),
        ({"tensor_model_parallel_size": "2"}, ["--tensor-model-parallel-size", "'2'"]),
        ({"tensor_model_parallel_size": 3}, ["8 learner ranks", "3", "--actor-num-gpus-per-node"]),
        ({"hidden_dropout": 0.1}, ["--hidden-dropout", "0.1"]),
        ({"optimizer": "sgd"}, ["--optimizer", "sgd", "adam"]),
        ({"recompute_granularity": "most"}, ["most", "full, selective"]),
        ({"recompute_granularity": "full"}, ["--recompute-method", "--recompute-num-layers"]),
        ({"recompute_num_layers": 1}, ["--recompute-granularity full"]),
        ({"overlap_param_gather": True}, ["--use-distributed-optimizer", "--overlap-grad-reduce"]),
    ],
)
def test_a_setting_that_cannot_run_is_refused_with_its_flag(
    flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(**flags)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def given_as_flags(name: str, value: Any) -> Any:
    """What the learner is told when its setting `name` is given on the command line."""
    words = [flag(name), *([] if value is True else [str(value)])]
    if value is False:
        words = [flag(name).replace("--", "--no-", 1)]
    read = read_flags(words).values["megatron"]
    assert read.keys() == {name}
    return read[name]


def examples(name: str) -> list[Any]:
    """Values that the type of a setting allows."""
    types: list[Any] = [typing.get_type_hints(MegatronSettings)[name]]
    found: list[Any] = []
    while types:
        kind = types.pop()
        if typing.get_origin(kind) is Literal:
            found += typing.get_args(kind)
        elif kind is bool:
            found += [True, False]
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
        ({"rotary_base": 10000.0}, ["--rotary-base", "10000", "1000000"]),
        ({"untie_embeddings_and_output_weights": False}, ["--untie-embeddings", "False", "True"]),
        ({"qk_layernorm": False}, ["--qk-layernorm"]),
        ({"tensor_model_parallel_size": 16}, ["8 key-value heads", "16"]),
        ({"pipeline_model_parallel_size": 16}, ["36 layers", "--pipeline-model-parallel-size 16"]),
    ],
)
def test_a_flag_that_contradicts_the_checkpoint_is_refused_with_both_numbers(
    flags: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refusal:
        architecture().check(settings(16, **flags))
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


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
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["yarn"]),
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
        timeout=100,
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
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
