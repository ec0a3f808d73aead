"""Servers that somebody else started, and the configuration of a run that joins them."""

from importlib.metadata import version
from typing import Any

import pytest

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.run import RunConfig
from agentrl.serving.external import _COLLECTIVE, _OURS
from tests.unit.scripted_engines import Cluster

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
ADDRS = "--rollout-external-engine-addrs"
#: What SGLang says of a server that is started as the default job starts its own.
SERVER: dict[str, Any] = {
    **{field: value for field, (value, _) in (_OURS | _COLLECTIVE).items()},
    "version": version("sglang"),
    "device": "cpu",
    "dtype": "float32",
    "tp_size": 1,
    "model_path": MODEL,
    "max_req_input_len": 4096,
    "skip_tokenizer_init": True,
    "weight_version": "default",
    "mem_fraction_static": 0.2,
    "api_key": None,
    "admin_api_key": None,
}
MODEL_INFO = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}


class OneNode:
    """Where every process of the run is to be placed."""

    def slots(self) -> list[str]:
        return ["here"]

    def reserve_port(self, name: str) -> int:
        return 1

    def address_of(self, name: str) -> str:
        return "127.0.0.1"


@pytest.fixture
def servers(cluster: Cluster) -> Cluster:
    for engine in cluster.engines.values():
        engine.server, engine.model = dict(SERVER), dict(MODEL_INFO)
        engine.version = "default"
    return cluster


def joins(servers: Cluster, *names: str, **flags: Any) -> RunConfig:
    urls = [servers.addresses[name].url for name in names]
    base = PRESETS[DEFAULT].values | {"device": "cpu", "rollout_external_engine_addrs": urls}
    return RunConfig(**base | flags)
