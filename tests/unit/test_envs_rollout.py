"""`@rollout` and `program` in the registry, the preflight and the sub-commands."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl import rollout
from agentrl.cli.main import main as agentrl_program
from agentrl.envs.check.preflight import preflight
from agentrl.envs.check.signatures import check_class
from agentrl.envs.processes import end_all, start_time
from agentrl.envs.program import Program
from agentrl.envs.registry import known_envs, load_env
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ConfigError
from tests.unit.env_modules import Write, refusal, write

__all__ = ["write"]

SOLVE = """
from agentrl import Chat, rollout

@rollout("{name}")
async def solve(task, chat, *, depth=2):
    return float(depth)
"""


def test_a_function_is_found_by_file_by_name_and_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text(SOLVE.replace("{name}", "test/found"))
    cls = load_env(str(path))
    assert issubclass(cls, Rollout)
    assert load_env(f"{path}:solve") is cls
    assert load_env("test/found") is cls
    assert cls.__name__ == "solve"
    check_class(cls)


def test_the_function_stays_what_it_is_and_env_args_are_its_own(tmp_path: Path) -> None:
    @rollout("test/stays")
    async def stays(task: dict[str, Any], chat: Chat, *, depth: int = 2) -> float:
        return float(depth)

    path = tmp_path / "args.py"
    path.write_text(SOLVE.replace("{name}", "test/args"))
    assert load_env("test/stays")(depth=3)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'width'"):
        load_env(str(path))(width=1)
    with pytest.raises(ConfigError, match="registered by"):
        rollout("test/stays")(_other)


async def _other(task: dict[str, Any], chat: Chat) -> float:
    return 0.0


def test_what_is_no_async_function_is_refused() -> None:
    def plain(task: dict[str, Any], chat: Chat) -> float:
        return 0.0

    with pytest.raises(ConfigError, match="async def solve"):
        rollout("test/plain")(plain)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "has no solve; write `async def solve\\(self, task, chat\\):`"),
        ("def solve(self, task, chat): return 1.0", "plain def"),
        ("async def solve(self, task): return 1.0", "cannot call that"),
    ],
)
def test_a_rollout_class_that_cannot_work_is_refused(tmp_path: Path, body: str, said: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(f"from agentrl import Rollout\nclass Mine(Rollout):\n    {body}\n")
    with pytest.raises(ConfigError, match=said):
        check_class(load_env(str(path)))


def test_env_play_says_that_a_rollout_has_no_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(SOLVE.replace("{name}", "test/cli"))
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    flags = ["--prompt-data", str(tmp_path / "rows.jsonl")]
    assert agentrl_program(["env", "play", str(path), *flags]) == 2
    assert "owns its loop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "wants --env-args"),
        ({"argv": []}, "argv is empty"),
        ({"argv": "python agent.py"}, "Expected `array`"),
        ({"argv": ["no-such-program-anywhere"]}, "there is no program"),
    ],
)
def test_a_program_is_checked_before_anything_starts(args: dict[str, Any], said: str) -> None:
    assert "program" in known_envs()
    assert load_env("program") is Program
    check_class(Program)
    with pytest.raises(ConfigError, match=said):
        Program(**args)


def test_what_a_program_has_started_is_ended_wherever_it_hides() -> None:
    """In its session; in one of its own, by its mark; and as the child of one that is found."""
    sleep = "import time; print('up', flush=True); time.sleep(600)"
    hidden = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        f"{sleep!r}], env={{}}, start_new_session=True)"
    )
    mark = {"AGENTRL_TEST_MARK": "0123456789"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        for code, environment in ((sleep, {}), (sleep, mark), (hidden, mark))
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
    end_all(started[0].pid, start_time(started[0].pid), b"AGENTRL_TEST_MARK=0123456789")
    for process in started:
        assert process.wait(300) == -9
        # whoever else held the pipe is gone as well
        assert process.stdout is not None
        assert process.stdout.read() == b""
        process.stdout.close()


def test_preflight_takes_a_rollout_as_it_is_and_plays_nothing(write: Write) -> None:
    source = SOLVE.replace("{name}", "test/preflight").replace("return", "raise SystemExit\n    #")
    assert preflight(write(source, file="agent.py", env="agent.py")) == []
    config = write(source, file="agent.py", env="agent.py", env_args={"width": 3})
    assert "width" in refusal(config)


def test_arguments_in_the_wrong_order_are_refused() -> None:
    async def solve(chat: Chat, task: dict[str, Any]) -> float:
        return 1.0

    with pytest.raises(ConfigError, match=r"is called as \(task, chat\)"):
        rollout("test/turned")(solve)
