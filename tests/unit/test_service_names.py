"""What a service of an Env may be called: its process and its log have that name in the run."""

from typing import Any

import pytest

from agentrl.cli.train import run as train
from agentrl.config.eval_sets import EvalSet
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.services import services_of_run
from agentrl.errors import ConfigError
from tests.unit.env_modules import RESET, SCORE, Write, env_source, refusal, write

__all__ = ["write"]

HERE = f"{__name__}:"


class Named(Env):
    """Services of the names that the run says."""

    @classmethod
    def service_specs(cls, args: Any) -> dict[str, ServiceSpec]:
        argv = ["serve", args.get("port", "1")]
        return {name: ServiceSpec(name, [*argv, name], "/") for name in args["names"]}


def named(*names: str, **flags: Any) -> RunConfig:
    return RunConfig(env=f"{HERE}Named", env_args={"names": list(names)}, **flags)


@pytest.mark.parametrize(
    "name",
    [
        *("buffer", "router", "driver", "learner-0", "worker-0", "worker-17"),
        *("engine-0", "engine-0.1", "eval-engine-3"),
        *("host", "workers-1", "empty-0"),  # slots: one that asks for GPUs has a slot of its name
    ],
)
def test_a_service_with_the_name_of_a_process_of_the_run_is_refused(name: str) -> None:
    said = f"the service '{name}' cannot run .* that is called so; give it another name"
    with pytest.raises(ConfigError, match=said):
        services_of_run(named("search", name), [])


@pytest.mark.parametrize("name", ["", "a/b", "../../x", "a\nb", "a\x1b[2J", "a\0b", "n" * 201])
def test_a_service_whose_log_would_not_be_a_file_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is no name of a service; .* 1 to 200 bytes") as error:
        services_of_run(named(name), [])
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "name", ["search", "engine-search", "learner", "worker-a", "my buffer", "Suche-ü", "router-0"]
)
def test_any_other_name_is_fine(name: str) -> None:
    assert list(services_of_run(named(name), []).processes) == [name]


def test_two_services_of_one_process_name_are_refused() -> None:
    """One of an evaluation set runs as NAME-evalN, which another may be called."""
    run = named("judge", "judge-eval0")
    other = RunConfig(env=f"{HERE}Named", env_args={"names": ["judge"], "port": "7"})
    assert list(services_of_run(run, [EvalSet("same", run)]).processes) == ["judge", "judge-eval0"]
    with pytest.raises(ConfigError, match="two services would be the process 'judge-eval0'"):
        services_of_run(run, [EvalSet("other", other)])


def test_it_is_refused_before_the_start_and_in_a_dry_run(write: Write) -> None:
    specs = (
        "@classmethod\ndef service_specs(cls, args):\n"
        "    from agentrl import ServiceSpec\n"
        "    return {'worker-0': ServiceSpec('worker-0', ['db'], '/health')}"
    )
    config = write(env_source(RESET, SCORE, specs))
    assert "the service 'worker-0'" in refusal(config)
    argv = ["--env", "calc.py:Calc", "--prompt-data", "rows.jsonl", "--dry-run"]
    with pytest.raises(ConfigError, match="the service 'worker-0'"):
        train(argv, "train_async")


class Copied(Named):
    """The same, of which each node has a copy of `search`."""

    @classmethod
    def service_specs(cls, args: Any) -> dict[str, ServiceSpec]:
        once = super().service_specs(args)
        return once | {"search": ServiceSpec("search", ["serve"], "/", per="node")}


@pytest.mark.parametrize(("name", "is_refused"), [("search.1", True), ("search.a", False)])
def test_a_service_with_the_name_of_a_copy_is_refused(name: str, is_refused: bool) -> None:
    run = RunConfig(env=f"{HERE}Copied", env_args={"names": [name]})
    if not is_refused:
        assert {*services_of_run(run, []).processes} == {name, "search"}
        return
    with pytest.raises(ConfigError, match=r"'search\.1' has the name of a copy of 'search'"):
        services_of_run(run, [])
