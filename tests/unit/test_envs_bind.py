"""`Env.bind`: what a run gives its Envs, by one road for all who make one."""

from pathlib import Path
from typing import Any

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.config.run import RunConfig
from agentrl.envs.check.subject import Subject
from agentrl.envs.env import Env, EnvContext
from agentrl.tools.tool import tool
from agentrl.types import Task

CONTEXT = EnvContext({"shop": "http://127.0.0.1:1"}, 7.0, allow_unsafe_sandbox=True)
MODEL = Path(__file__).parents[2] / "agentrl/envs/search_r1/model"


class Plain(Env):
    """Overrides nothing."""


class Binding(Env):
    """Has a tool of the framework's name, and an `__init__` that calls nobody."""

    def __init__(self) -> None:
        self.made = True

    @tool
    async def bind(self, page: str) -> str:
        """Bind a book."""
        return page


def given(env: Env) -> tuple[Any, float, bool]:
    return env.services, env.tool_timeout_s, env.allow_unsafe_sandbox


def test_an_env_that_overrides_nothing_takes_what_the_run_gives() -> None:
    env = Plain()
    Env.bind(env, CONTEXT)
    assert given(env) == (CONTEXT.services, 7.0, True)
    assert given(Plain()) == ({}, 60.0, False)


def test_an_env_with_a_tool_named_bind_is_bound_and_keeps_its_tool() -> None:
    env = Subject(Binding, {}, Task("t", {}), CONTEXT).make()
    assert given(env) == (CONTEXT.services, 7.0, True)
    assert list(env.tools) == ["bind"]


def test_a_worker_binds_its_envs_as_the_run_says() -> None:
    config = RunConfig(env=f"{__file__}:Binding", tool_timeout_s=7.0, allow_unsafe_sandbox=True)
    settings = WorkerSettings.from_config(config, MODEL, 512, dict(CONTEXT.services))
    assert settings.context == CONTEXT
    assert given(Worker(settings)._ways.of(Task("t", {})).make_env()) == (
        CONTEXT.services,
        7.0,
        True,
    )
