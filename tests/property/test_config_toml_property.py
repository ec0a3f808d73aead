"""`config.toml` reads back as what was written."""

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.config.given import GivenFlags
from agentrl.config.resolve import layered
from agentrl.config.run import RunConfig
from agentrl.config.toml import dump_config, write_config

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAF = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)


@given(st.dictionaries(TEXT, VALUE, max_size=4), TEXT, st.lists(TEXT, max_size=3))
def test_toml_says_what_the_configuration_holds(
    env_args: dict[str, Any], run_id: str, words: list[str]
) -> None:
    config = RunConfig(run_id=run_id, env_args=env_args, eval_prompt_data=words)
    read = tomllib.loads(dump_config(config))
    assert read["run_id"] == run_id
    assert read["eval_prompt_data"] == words
    assert read.get("env_args", {}) == env_args
    assert "num_rollout" not in read


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["a", "b c", "d.e"]), VALUE, max_size=3),
    st.integers(1, 64),
    st.floats(1e-9, 1.0),
    st.none() | st.integers(0, 9),
    st.sampled_from([{}, {"tp_size": 2}, {"context_length": "64k", "disable_radix_cache": True}]),
)
def test_a_written_configuration_resolves_to_itself(
    tmp_path: Path,
    env_args: dict[str, Any],
    groups: int,
    lr: float,
    staleness: int | None,
    sglang: dict[str, Any],
) -> None:
    config = RunConfig(
        env="mine:Env",
        hf_checkpoint="somewhere",
        env_args=env_args,
        rollout_batch_size=groups,
        lr=lr,
        max_staleness=staleness,
        sglang=sglang,
        megatron={"num_layers": 3, "swiglu": True, "norm_epsilon": 1e-6},
    )
    path = tmp_path / "config.toml"
    write_config(path, config)
    given_flags = GivenFlags({}, {}, config=str(path))
    assert layered(given_flags, "train_async")[0] == config
