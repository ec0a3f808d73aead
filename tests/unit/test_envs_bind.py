"""`Env.bind`: what a run gives its Envs, by one road for all who make one."""

import ast
from pathlib import Path
from typing import Any

from agentrl.actors.worker import Worker, WorkerSettings
from agentrl.config.run import RunConfig
from agentrl.envs.check.subject import Subject
from agentrl.envs.env import Env, EnvContext, bound_env
from agentrl.tools.tool import tool
from agentrl.types import Task

CONTEXT = EnvContext({"shop": "http://127.0.0.1:1"}, 7.0, allow_unsafe_sandbox=True)
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "agentrl/envs/search_r1/model"


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


def test_an_env_is_told_of_its_episode_when_it_is_bound() -> None:
    assert bound_env(Plain, CONTEXT, is_evaluation=True).is_evaluation
    env = bound_env(Plain, CONTEXT)
    assert (env.is_evaluation, given(env)) == (False, (CONTEXT.services, 7.0, True))
    assert not EnvContext().is_evaluation


def test_nothing_but_bind_writes_what_a_context_gives() -> None:
    """A new attribute of the context reaches every Env, whoever makes it."""
    written = {}
    for path in sorted((ROOT / "agentrl").rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_bytes()))
        lines = [
            ast.unparse(each)
            for node in nodes
            if isinstance(node, ast.Assign)
            for each in node.targets
        ]
        written[path.relative_to(ROOT / "agentrl").as_posix()] = lines
    names = EnvContext.__struct_fields__
    others = [f"{path}: {line}" for path, lines in written.items() for line in lines]
    from_outside = tuple(f".{name}" for name in names)
    assert [each for each in others if each.endswith(from_outside) and ": self." not in each] == []
