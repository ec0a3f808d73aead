"""A Gymnasium environment and the tools of an MCP server, each trained for a few iterations: all of
the loop but Ray, SGLang and the router (see `whole_loop`)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from agentrl.buffer import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.config.resolve import parse
from agentrl.config.run import RunConfig
from agentrl.envs.adapters.gymnasium import GymnasiumEnv
from agentrl.envs.messages import AssistantTurn, Step, ToolCall
from agentrl.envs.tool_use import ToolUseEnv
from agentrl.types import Fate, Outcome
from tests.integration.playing_engine import PlayingEngine, make_model
from tests.integration.whole_loop import learn, standing

pytestmark = pytest.mark.timeout(1800)

ITERATIONS = 3


class Steps(gymnasium.Env[Any, Any]):
    """Two steps; each is worth its action."""

    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.taken = 0
        return int(self.np_random.integers(3)), {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.taken += 1
        return action, float(action), self.taken == 2, False, {}


class Played(GymnasiumEnv):
    """What a model says that was never taught is an action too."""

    def read(self, text: str) -> int:
        return len(text.encode()) % 3


class Called(ToolUseEnv):
    """Each turn of a model that was never taught is a call; the second is the last."""

    async def step(self, turn: AssistantTurn) -> Step:
        number = len(turn.text.encode()) % 3
        raw = msgspec.json.encode({"a": number, "b": 40})
        step = await self.run_tools(
            msgspec.structs.replace(turn, tool_calls=[ToolCall("0", "add", raw)])
        )
        assert step.messages[0].content == str(number + 40)
        return Step(
            messages=step.messages,
            reward=float(number),
            terminated=turn.index == 1,
            metrics=step.metrics,
        )


@pytest.fixture
def url() -> Iterator[str]:
    program = Path(__file__).with_name("mcp_server.py")
    process = subprocess.Popen([sys.executable, program, "http"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    process.kill()
    process.wait()
    process.stdout.close()


def config(folder: Path, tokenizer_json: str, *flags: str) -> RunConfig:
    make_model(folder / "model", tokenizer_json)
    argv = [
        "--hf-checkpoint", str(folder / "model"), "--run-dir", str(folder), "--run-id", "run",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", "2",
        "--n-samples-per-prompt", "2", "--lr", "0.01", "--actor-num-gpus-per-node", "1",
        "--rollout-max-response-len", "6", "--update-weight-buffer-size", "8192",
        "--rollout-stop-token-ids", *map(str, range(0, 700, 3)),
    ]  # fmt: skip
    return parse([*argv, *flags], "train_async").config


def train(config: RunConfig) -> None:
    """A run from its first process to its last: groups were trained, and the weights changed."""
    run = Path(config.run_dir) / "run"
    engine = PlayingEngine(Path(str(config.hf_checkpoint)))
    with start_blocking_portal() as portal, standing(config, engine, portal) as site:
        _, leases = learn(config, site, engine)
        portal.call(site.drain, "the run is complete", False)
    with LedgerReader(run / "ledger.db") as ledger:
        rows = ledger.load_all()
    assert [lease.number for lease in leases] == list(range(1, ITERATIONS + 1))
    trained = {row.mint for row in rows.groups if row.fate is Fate.TRAINED}
    assert len(trained) == 2 * ITERATIONS
    episodes = [row for row in rows.episodes if row.mint in trained]
    assert {row.outcome for row in episodes} == {Outcome.DONE}
    assert len({row.reward for row in episodes}) > 1
    assert len({digest for _, digest in engine.pushed}) > 1
    assert audit(run).problems == ()


def test_a_gymnasium_environment_is_trained(tmp_path: Path, qwen_tokenizer_json: str) -> None:
    gymnasium.register("Steps-v0", lambda **made: Steps(**made))
    try:
        args = {"id": "Steps-v0", "prompt": "?"}
        env = f"{__name__}:Played"
        flags = ["--env", env, "--env-args", msgspec.json.encode(args).decode()]
        train(config(tmp_path, qwen_tokenizer_json, *flags))
    finally:
        gymnasium.registry.pop("Steps-v0")


def test_tools_of_an_mcp_server_are_trained_with(
    tmp_path: Path, qwen_tokenizer_json: str, url: str
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"input": "Task {i}", "label": "x"}}\n' for i in range(3)))
    args = {"mcp": [{"url": url, "tools": ["add"]}]}
    flags = ["--env", f"{__name__}:Called", "--prompt-data", str(tasks)]
    env_args = ["--env-args", msgspec.json.encode(args).decode()]
    train(config(tmp_path, qwen_tokenizer_json, *flags, *env_args))
