"""What processes are told because of the device: settings, and an environment for NCCL that is the
same in learner and engines, which meet in one communicator."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.cluster.host import ProcessOrder, environment_of
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.placement import Cluster
from agentrl.cluster.spec import RunSpec
from agentrl.config.device import Device
from agentrl.config.megatron import MegatronSettings
from agentrl.config.run import RunConfig

#: SGLang's own function, on each [arguments of an engine, environment of its node].
ASK_SGLANG = """
import argparse, json, os, sys
from sglang.srt.entrypoints.engine import _set_envs_and_config
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = []
for argv, environ in json.loads(sys.argv[1]):
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        del os.environ[name]
    os.environ.update(environ)
    _set_envs_and_config(ServerArgs.from_cli_args(parser.parse_args(argv)))
    found.append({k: v for k, v in os.environ.items() if k.startswith("NCCL_")})
print(json.dumps(found))
"""
CASES: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"enable_nccl_nvls": True}, {}),
    ({"enable_symm_mem": True}, {}),
    ({"enable_kv_cache_sharding": True}, {}),
    ({}, {"NCCL_CUMEM_ENABLE": "1"}),
    ({}, {"NCCL_NVLS_ENABLE": "1"}),
    ({"enable_symm_mem": True}, {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}),
]


class OneNode:
    """A cluster of which only addresses are asked."""

    def address_of(self, process: str) -> str:
        return "127.0.0.1"

    def reserve_port(self, process: str) -> int:
        return 4000

    def slots(self) -> list[str]:
        return ["host"]


Planned = tuple[RunSpec, dict[str, ProcessOrder]]
Plan = Callable[..., Planned]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """The specification of a run with one learner rank and one engine, and its orders."""
    model = {"vocab_size": 96, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(model))

    def make(device: Device, **flags: Any) -> Planned:
        config = RunConfig(
            hf_checkpoint=str(tmp_path), run_dir=str(tmp_path), actor_num_gpus_per_node=1, **flags
        )
        cluster = cast(Cluster, OneNode())
        run = RunDir(config)
        run.private = Path(tempfile.mkdtemp(dir=tmp_path))
        spec, found = plan_processes(config, run, cluster, {}, device)
        return spec, {order.name: order for order in found}

    return make


def test_a_run_on_gpus_is_told_to_train_and_to_sample_in_bf16(plan: Plan) -> None:
    spec, orders = plan("cuda", megatron={"tensor_model_parallel_size": 1})
    settings = MegatronSettings.from_config(spec.config)
    assert settings.bf16
    assert settings.use_distributed_optimizer
    engine = orders["engine-0"].argv
    assert engine[engine.index("--dtype") + 1] == "bfloat16"


def test_a_run_on_a_cpu_is_told_to_train_and_to_sample_in_float32(plan: Plan) -> None:
    spec, orders = plan("cpu")
    settings = MegatronSettings.from_config(spec.config)
    assert not settings.bf16
    assert not settings.use_distributed_optimizer
    engine = orders["engine-0"].argv
    assert engine[engine.index("--dtype") + 1] == "float32"


def _of_nccl(environ: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("NCCL_")}


def test_a_learner_has_the_nccl_settings_that_sglang_sets_in_its_engines(plan: Plan) -> None:
    asked, ours = [], []
    for sglang, environ in CASES:
        _, planned = plan("cuda", sglang=sglang)
        engine, learner = planned["engine-0"], planned["learner-0"]
        asked.append([engine.argv[3:], _of_nccl(environment_of(engine, environ))])
        ours.append(_of_nccl(environment_of(learner, environ)))
    standins = Path(__file__).parents[2] / "agentrl" / "serving" / "standins"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK_SGLANG, json.dumps(asked)],
        env=os.environ
        | {
            "PYTHONPATH": str(standins),
            "SGLANG_PLATFORM": "agentrl_cpu",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "agentrl.serving.architectures",
            "TORCHDYNAMO_DISABLE": "1",
        },
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    sglangs = json.loads(run.stdout.splitlines()[-1])
    assert {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE"} <= sglangs[0].keys()
    for case, theirs, mine in zip(CASES, sglangs, ours, strict=True):
        assert mine == theirs, case


def test_overlap_of_megatron_has_its_one_connection_unless_the_node_says_otherwise(
    plan: Plan,
) -> None:
    learner = plan("cuda")[1]["learner-0"]
    assert environment_of(learner, {})["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    given = {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    assert environment_of(learner, given)["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"


def test_a_learner_without_gpus_is_told_nothing_of_them(plan: Plan) -> None:
    names = environment_of(plan("cpu")[1]["learner-0"], {}).keys()
    assert not {"NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "CUDA_DEVICE_MAX_CONNECTIONS"} & names
