"""A group of ranks that attends to requests of its own has room for as many turns as an engine that
is one: permits count groups, not engines."""

from typing import Any, cast

import pytest

from agentrl.cluster.roles.worker import client_settings
from agentrl.cluster.spec import ModelFacts, RunSpec
from agentrl.config.run import RunConfig

OLD = {"dp_size": 4, "enable_dp_attention": True}
NEW = {"attn_dp_size": 4}


def settings(**flags: Any) -> RunConfig:
    told = {"rollout_num_gpus": 16, "rollout_num_gpus_per_engine": 8, "num_agent_workers": 1}
    return RunConfig(**cast(Any, told | {"sglang_server_concurrency": 10} | flags))


@pytest.mark.parametrize(("sglang", "width"), [({}, 1), (OLD, 4), (NEW, 4), ({"dp_size": 4}, 1)])
def test_permits_count_each_group_of_ranks(sglang: dict[str, Any], width: int) -> None:
    config = settings(sglang=sglang)
    assert config.num_permits == 2 * width * 10
    told = client_settings(cast(RunSpec, _Spec(config)))
    assert told["num_permits"] == 2 * width * 10
    apart = settings(sglang=sglang, eval_interval=1, eval_mode="apart", eval_num_engines=3)
    assert apart.num_eval_permits == 3 * width * 10


def test_groups_of_engines_count_by_their_own_settings_and_prefill_not_at_all() -> None:
    groups = [
        {"worker_type": "prefill", "num_gpus": 8, "overrides": OLD},
        {"worker_type": "decode", "num_gpus": 8, "overrides": {**OLD, "dp_size": 2}},
        {"worker_type": "decode", "num_gpus": 8},
    ]
    config = settings(sglang_config={"sglang": [{"name": "m", "server_groups": groups}]})
    assert config.num_permits == (2 + 1) * 10


class _Spec:
    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.model = ModelFacts(vocab_size=9, max_context=9)
