"""Which of Megatron's flags the learner accepts by themselves, and how it refuses others."""

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
from tests.unit.megatron_flags import architecture, settings

pytestmark = pytest.mark.slow


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
