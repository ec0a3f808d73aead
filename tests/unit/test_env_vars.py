"""`--env-vars` and `--train-env-vars`."""

from pathlib import Path
from typing import Any, cast

import pytest

from agentrl.cluster.host import environment_of
from agentrl.cluster.layout import RunDir
from agentrl.cluster.orders import plan_processes
from agentrl.cluster.tracking import shown_config
from agentrl.config.env_vars import about_env_vars
from agentrl.config.plan import describe
from agentrl.config.presets import DEFAULT
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.config.toml import dump_config
from agentrl.envs.env import ServiceSpec
from agentrl.errors import ConfigError


class OneNode:
    """Where every process is to be placed."""

    def slots(self) -> list[str]:
        return ["here"]

    def reserve_port(self, name: str) -> int:
        return 1

    def address_of(self, name: str) -> str:
        return "127.0.0.1"


def environments(config: RunConfig, folder: Path, **node: str) -> dict[str, dict[str, str]]:
    run = RunDir(config)
    run.private = folder
    services = {"search": ServiceSpec("search", ["serve"], "/ready")}
    _, orders = plan_processes(config, run, cast(Any, OneNode()), services, "cpu")
    return {order.name: environment_of(order, node) for order in orders}


def parsed(*flags: str) -> RunConfig:
    base = ["--preset", DEFAULT, "--device", "cpu", "--actor-num-gpus-per-node", "1"]
    return parse([*base, *flags], "train_async").config


def test_every_process_has_the_variables(tmp_path: Path) -> None:
    config = parsed("--env-vars", "A=1", "B=x=y", "--env-vars", "OMP_NUM_THREADS=2")
    found = environments(config, tmp_path, A="of the node")
    assert {"learner-0", "engine-0", "buffer", "worker-0", "router", "search"} <= found.keys()
    for env in found.values():
        assert (env["A"], env["B"], env["OMP_NUM_THREADS"]) == ("1", "x=y", "2")


def test_ranks_of_the_learner_have_variables_of_their_own(tmp_path: Path) -> None:
    config = parsed("--env-vars", "A=1", "--train-env-vars", '{"A": "2", "N": 3}')
    found = environments(config, tmp_path)
    assert (found["learner-0"]["A"], found["learner-0"]["N"]) == ("2", "3")
    assert found["engine-0"]["A"] == "1"
    assert "N" not in found["engine-0"]


def test_a_name_alone_passes_on_a_value_that_is_written_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret of mine")
    config = parsed("--env-vars", "JUDGE_KEY")
    assert environments(config, tmp_path)["worker-0"]["JUDGE_KEY"] == "secret of mine"
    assert "secret of mine" not in dump_config(config)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--env-vars", "NOT_THERE_1"), "there is no such variable here"),
        (("--env-vars", "A-B=1"), "a variable has a name of letters"),
        (("--env-vars", "=1"), "a variable has a name of letters"),
        (("--env-vars", "CUDA_VISIBLE_DEVICES=0"), "every process gets the devices"),
        (("--env-vars", "PYTHONPATH=/x"), "export it before the run"),
        (("--train-env-vars", '{"A": [1]}'), "is no text and no number"),
        (("--train-env-vars", "A=1"), "--train-env-vars wants a JSON object"),
    ],
)
def test_what_cannot_be_a_variable_is_refused(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(*flags)


@pytest.mark.parametrize("name", ["RANK", "AGENTRL_X", "NCCL_CUMEM_ENABLE", "TMPDIR"])
def test_what_a_run_sets_itself_is_refused(name: str) -> None:
    assert list(about_env_vars(RunConfig(env_vars=[f"{name}=1"]), {}))
    assert list(about_env_vars(RunConfig(train_env_vars={name: "1"}), {}))


def test_trackers_are_shown_names_alone() -> None:
    config = RunConfig(env_vars=["A=secret", "B"], train_env_vars={"C": "secret"})
    shown = shown_config(config)
    assert (shown["env_vars"], shown["train_env_vars"]) == (["A", "B"], ["C"])
    assert "secret" not in str(shown)


def test_all_of_them_are_told_at_once() -> None:
    told = list(about_env_vars(RunConfig(env_vars=["X Y=1", "GONE"]), {}))
    assert [line.split(":")[0] for line in told] == ["--env-vars 'X Y'", "--env-vars GONE"]


@pytest.mark.parametrize(
    "flags", [("--env-vars", "MY_API_KEY=x"), ("--train-env-vars", '{"A_TOKEN": "x"}')]
)
def test_a_value_that_looks_like_a_secret_is_told(flags: tuple[str, ...]) -> None:
    base = ["--preset", DEFAULT, "--device", "cpu"]
    notes = parse([*base, *flags], "train_async").notes
    assert any("its value is written to config.toml" in note for note in notes)
    assert not any(
        "is written to" in note for note in parse([*base, "--env-vars", "A=1"], "train_async").notes
    )


def test_a_dry_run_shows_no_value_of_a_secret() -> None:
    """`--env-vars`, `--train-env-vars`: names, and the values of all others."""
    said = ('{"HF_TOKEN": "x-2", "N": 3}', "MY_API_KEY=x-1", "NCCL_DEBUG=INFO")
    page = describe(parsed("--train-env-vars", said[0], "--env-vars", *said[1:]))
    assert "MY_API_KEY=[hidden]" in page
    assert "NCCL_DEBUG=INFO" in page
    assert "x-1" not in page
    assert "x-2" not in page
