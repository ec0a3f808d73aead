"""Mixtures of `--env-mix` in tests: rows on disk, an Env with tasks of its own, and command lines
that name them as parts."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.config.resolve import Resolved, parse
from agentrl.config.run import RunConfig
from agentrl.envs.env import Env, ServiceSpec
from agentrl.envs.messages import Message
from agentrl.envs.registry import load_env
from agentrl.envs.tasks import open_source
from agentrl.errors import ConfigError
from agentrl.types import Task, TaskSource

MODEL = str(PRESETS[DEFAULT].values["hf_checkpoint"])
HERE = f"{__file__}:"


class Pears(Env):
    """Brings tasks and sets of its own, and has a service."""

    def __init__(self, *, colour: str = "green") -> None:
        super().__init__()
        self.colour = colour

    @classmethod
    def service_specs(cls, args: Any) -> dict[str, ServiceSpec]:
        return {"orchard": ServiceSpec("orchard", ["serve", args.get("colour", "")], "/ready")}

    @classmethod
    def train_tasks(cls, args: Any, *, seed: int) -> Sequence[Task]:
        return [Task(f"p{i}", {"n": i}) for i in range(40)]

    @classmethod
    def eval_tasks(cls, args: Any) -> dict[str, Sequence[Task]]:
        return {"ripe": [Task("r", {"n": 1})]}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        return [Message.user("which?")]

    async def score(self, text: str) -> float:
        return float(text == self.colour)


@pytest.fixture(autouse=True)
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train", "other", "eval"):
        lines = [f'{{"input": "{name} {i}?", "label": "{i}"}}\n' for i in range(24)]
        Path(f"{name}.jsonl").write_text("".join(lines))


def parsed(*parts: dict[str, Any], flags: str = "", **defaults: Any) -> Resolved:
    file = {"defaults": defaults, "parts": list(parts)}
    Path("mix.yaml").write_text(yaml.safe_dump(file))
    base = f"--hf-checkpoint {MODEL} --rollout-batch-size 4 --device cpu --num-rollout 5"
    base += " --env-mix mix.yaml"
    if "sft_loss" not in flags:
        base += " --rollout-max-response-len 64 --n-samples-per-prompt 4"
    return parse(f"{base} {flags}".split(), "train_async")


def rows_part(name: str = "sums", **said: Any) -> dict[str, Any]:
    return {"name": name, "prompt_data": "train.jsonl", "rm_type": "math", **said}


def pears(name: str = "pears", **said: Any) -> dict[str, Any]:
    return {"name": name, "env": f"{HERE}Pears", **said}


def refused(*parts: Any, flags: str = "", **defaults: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(*parts, flags=flags, **defaults)
    return str(caught.value)


def first(source: TaskSource, number: int, cursor: int = 0) -> list[Task]:
    async def take() -> list[Task]:
        tasks = source.tasks(cursor)
        return [task async for task in _some(tasks, number)]

    return anyio.run(take)


async def _some(tasks: AsyncIterator[Task], number: int) -> AsyncIterator[Task]:
    for _ in range(number):
        task = await anext(tasks, None)
        if task is None:
            return
        yield task


def source_of(config: RunConfig) -> TaskSource:
    return open_source(config, load_env(config.env or "single-turn"))
