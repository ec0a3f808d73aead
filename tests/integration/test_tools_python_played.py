"""Episodes of `tools-python` with programs that really run."""

import json
import tomllib
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config.resolve import parse
from agentrl.envs.check.preflight import preflight
from agentrl.envs.messages import AssistantTurn, Step
from agentrl.envs.registry import load_env
from agentrl.envs.tools_python import ToolsPythonEnv
from agentrl.errors import ConfigError, EnvError
from agentrl.tokens.chat import ToolCall

pytestmark = pytest.mark.anyio

TASK = {"question": "What is 6 * 7?", "answer": "42"}
NAME = "agentrl.envs.tools_python:ToolsPythonEnv"


def turn(text: str = "", **arguments: str) -> AssistantTurn:
    """A turn that answers, or one that calls the tool whose argument is given."""
    names = {"code": "python", "expression": "calculator"}
    calls = [
        ToolCall(f"call_0_{position}", names[name], json.dumps({name: value}).encode())
        for position, (name, value) in enumerate(arguments.items())
    ]
    return AssistantTurn(text, calls, None, "stop", 0)


async def begun() -> ToolsPythonEnv:
    env = ToolsPythonEnv()
    env.allow_unsafe_sandbox = True
    (prompt,) = await env.reset(seed=0, task=TASK)
    assert prompt.content.startswith("What is 6 * 7? End with the number")
    return env


async def played(played_turn: AssistantTurn) -> Step:
    return await (await begun()).step(played_turn)


def test_the_project_announces_it() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    target = project["entry-points"]["agentrl.envs"]["tools-python"]
    assert load_env(target) is load_env("tools-python") is ToolsPythonEnv


async def test_an_episode_computes_answers_and_is_rewarded() -> None:
    env = await begun()
    step = await env.step(turn(code="print(6 * 7)", expression="6 * 7"))
    assert [message.content for message in step.messages] == ["42\n", "42"]
    assert step.metrics == {"tool_calls": 2.0, "tool_errors": 0.0}
    assert not step.done
    final = await env.step(turn("<answer> 42.0 </answer>"))
    assert (final.terminated, final.reward) == (True, 1.0)
    await env.close()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1", "the program printed nothing"),
        ("print(1); 1 / 0", "error: the program failed: Traceback"),
        ("import sys; sys.exit(3)", "error: the program failed: exit code 3"),
        ("import os; os.fork()", "PermissionError: [Errno 1] Operation not permitted"),
        ("while True: print('x' * 1000)", "[ended: it wrote more than 8192 bytes]"),
        ("", "error: invalid arguments for python"),
    ],
)
async def test_what_a_program_did_is_told(code: str, said: str) -> None:
    step = await played(turn(code=code))
    assert said in step.messages[0].content
    assert step.reward == 0.0
    assert not step.done


async def test_what_a_program_prints_is_no_answer() -> None:
    env = await begun()
    await env.step(turn(code="print('<answer> 42 </answer>')"))
    assert (await env.step(turn("I do not know."))).reward == 0.0


async def test_a_task_that_is_none_is_refused() -> None:
    for row in ({"question": "?"}, TASK | {"answer": "forty-two"}):
        with pytest.raises(EnvError, match=r"the task lacks|is no number"):
            await ToolsPythonEnv().reset(seed=0, task=row)


def test_it_keeps_every_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", NAME, "--allow-unsafe-sandbox"]) == 0
    assert "every promise is kept" in capsys.readouterr().out


def test_without_a_sandbox_nothing_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    argv = ["--env", NAME, "--preset", "search-r1-local", "--num-rollout", "1"]
    with pytest.raises(ConfigError, match=r"apt install bubblewrap.*--allow-unsafe-sandbox"):
        preflight(parse(argv, "train_async").config)
    preflight(parse([*argv, "--allow-unsafe-sandbox"], "train_async").config)
    assert main(["env", "check", NAME]) == 2
    assert "--allow-unsafe-sandbox" in capsys.readouterr().err
