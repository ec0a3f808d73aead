"""The checker of rollouts: sound agents keep every promise, and each planted fault is named."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from agentrl.actors import rollout_contract
from agentrl.actors.rollout_contract import PROMISES, check_rollout
from agentrl.cli.main import main
from agentrl.envs.check import harness
from agentrl.envs.check.subject import Subject
from agentrl.envs.program import Program
from agentrl.envs.rollout import Chat, Rollout
from agentrl.errors import ConfigError, InfrastructureError
from agentrl.types import Task
from tests.unit.rollout_ground import DOUBLE, made_of

TASK = Task("t", {"question": "Double 21."})
HELLO: list[Any] = [{"role": "user", "content": "Double 21."}]
KEPT = list(PROMISES)
PLAYS, ANY_TURN, NEVER_STOPS, ENDS, LEAVES_NOTHING, LEAVES_THE_LOOP = KEPT
TIDY = """
import json, os, sys, urllib.request

task = json.loads(sys.stdin.read())
body = json.dumps({"messages": [{"role": "user", "content": task["question"]}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, body, head)) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
print(float(said == "42"))
"""


@pytest.fixture(autouse=True)
def hold_s(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine holds the loop as well; only one test is about that."""
    if request.function is not test_an_agent_that_holds_the_loop_is_named:
        monkeypatch.setattr(harness, "HOLD_S", 10.0)


def broken(cls: type[Rollout], **args: Any) -> dict[str, str]:
    """Promises that are not kept, and why."""
    found = {f.promise: f.problem for f in check_rollout(Subject(cls, args, TASK))}
    assert list(found) == KEPT[: len(found)]
    return {promise: problem for promise, problem in found.items() if problem is not None}


async def sound(task: dict[str, Any], chat: Chat) -> float:
    """A tool loop that is told what it did wrong."""
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        said = await chat.complete(messages, [DOUBLE])
        messages.append(said)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "error"}
            for call in said.get("tool_calls", ())
        ]
        if not said.get("tool_calls"):
            return float(said["content"] == "42")


def test_a_sound_agent_keeps_every_promise() -> None:
    assert broken(made_of(sound)) == {}


def test_a_program_keeps_every_promise(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(TIDY)
    assert broken(Program, argv=[sys.executable, str(tmp_path / "agent.py")]) == {}


def test_what_cannot_be_played_is_tried_no_further() -> None:
    async def raises(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        return float(task["answer"])

    async def silent(task: dict[str, Any], chat: Chat) -> float:
        return 1.0

    async def worthless(task: dict[str, Any], chat: Chat) -> Any:
        await chat.complete(HELLO)

    for solve, said in (
        (raises, "raises raised KeyError: 'answer' (tests/integration/test_rollout_contract.py:"),
        (silent, "the agent made no call that was answered"),
        (worthless, "worthless returned None; return a finite number"),
    ):
        (problem,) = broken(made_of(solve)).values()
        assert said in problem.replace("<locals>.", "").replace(".solve", "")


def test_a_program_that_fails_is_told_by_its_own_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]
    ((promise, problem),) = broken(Program, argv=argv).items()
    assert promise == PLAYS
    assert "ended with exit code 1: no such model" in problem


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("float(said['content'])", "silence"),
        ("float(len(said['tool_calls'])) if said['content'] == '' else 1.0", "silence"),
        ("1.0 if not said.get('tool_calls') else float(arguments(said)['number'])", "a call with"),
    ],
)
def test_an_agent_that_takes_its_model_at_its_word_is_named(body: str, what: str) -> None:
    import json

    def arguments(said: dict[str, Any]) -> Any:
        return json.loads(said["tool_calls"][0]["function"]["arguments"])

    async def trusting(task: dict[str, Any], chat: Chat) -> float:
        said = await chat.complete(HELLO, [DOUBLE])
        worth: float = eval(body, {"said": said, "arguments": arguments})
        return worth

    problem = broken(made_of(trusting))[ANY_TURN]
    assert f"on {what}" in problem
    assert "or give it a reward of 0" in problem


def test_an_agent_that_goes_on_when_it_is_cancelled_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stubborn(task: dict[str, Any], chat: Chat) -> float:
        try:
            await chat.complete(HELLO)
        except asyncio.CancelledError:
            while time.monotonic() < end:
                try:
                    await anyio.sleep(1)
                except asyncio.CancelledError:
                    continue
        return 1.0

    monkeypatch.setattr(rollout_contract, "LIMIT_S", 8.0)
    monkeypatch.setattr(
        rollout_contract, "PROMISES", {ENDS: PROMISES[ENDS], PLAYS: PROMISES[PLAYS]}
    )
    end = time.monotonic() + 60
    found = [f.problem for f in check_rollout(Subject(made_of(stubborn), {}, TASK))]
    assert len(found) == 1, "what cannot be ended is tried further"
    assert "goes on when it is cancelled" in str(found[0])


def test_an_agent_that_waits_for_its_model_and_holds_the_loop_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that is not async waits for an answer that this very loop would have to give."""

    async def waits(task: dict[str, Any], chat: Chat) -> float:
        url = f"{chat.base_url}/chat/completions"
        head = {"Authorization": f"Bearer {chat.api_key}"}
        body = b'{"messages": [{"role": "user", "content": "Double 21."}]}'
        urllib.request.urlopen(urllib.request.Request(url, body, head))  # noqa: ASYNC210
        return 1.0

    monkeypatch.setattr(rollout_contract, "LIMIT_S", 4.0)
    ((promise, problem),) = broken(made_of(waits)).items()
    assert promise == PLAYS
    assert "waits, on an answer, held the event loop for more than 6 s (" in problem
    assert "test_rollout_contract.py:" in problem


def test_what_is_left_by_an_agent_that_cannot_be_played_is_ended_too() -> None:
    async def lost(task: dict[str, Any], chat: Chat) -> float:
        left.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))  # noqa: ASYNC220
        raise InfrastructureError("the judge is away")

    left: list[subprocess.Popen[bytes]] = []
    try:
        with pytest.raises(InfrastructureError):
            broken(made_of(lost))
        assert [process.wait(300) for process in left] == [-9]
    finally:
        for process in left:
            process.kill()
            process.wait()


def test_processes_and_tasks_that_are_left_are_named_and_ended() -> None:
    async def untidy(task: dict[str, Any], chat: Chat) -> float:
        left.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))  # noqa: ASYNC220
        await chat.complete(HELLO)
        return 1.0

    async def forgetful(task: dict[str, Any], chat: Chat) -> float:
        forgotten.append(asyncio.ensure_future(asyncio.sleep(1000)))
        await chat.complete(HELLO)
        return 1.0

    left: list[subprocess.Popen[bytes]] = []
    forgotten: list[Any] = []
    try:
        problem = broken(made_of(untidy))[LEAVES_NOTHING]
    finally:
        num_running = sum(process.poll() is None for process in left)
        for process in left:
            process.kill()
            process.wait()
    assert "processes go on after" in problem
    assert num_running == 0, "what it left under the check was not ended"
    assert "tasks go on after" in broken(made_of(forgetful))[LEAVES_NOTHING]
    assert not any("sleep" in child.name() for child in psutil.Process().children())


def test_a_forked_process_is_named_and_ended_though_it_shows_no_mark() -> None:
    async def forks(task: dict[str, Any], chat: Chat) -> float:
        left.append(os.fork())
        if left[-1] == 0:
            time.sleep(1000)  # noqa: ASYNC251
            os._exit(0)
        await chat.complete(HELLO)
        return 1.0

    left: list[int] = []
    try:
        problem = broken(made_of(forks))[LEAVES_NOTHING]
    finally:
        running = [pid for pid in left if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert "processes go on after" in problem
    assert not running, "what it left under the check was not ended"


def test_a_task_that_soon_ends_by_itself_is_no_fault() -> None:
    async def brief(task: dict[str, Any], chat: Chat) -> float:
        ending.append(asyncio.ensure_future(asyncio.sleep(0.2)))
        await chat.complete(HELLO)
        return 1.0

    ending: list[Any] = []
    assert broken(made_of(brief)) == {}


def test_an_agent_that_holds_the_loop_is_named() -> None:
    async def selfish(task: dict[str, Any], chat: Chat) -> float:
        time.sleep(0.06)  # noqa: ASYNC251
        await chat.complete(HELLO)
        return 1.0

    ((promise, problem),) = broken(made_of(selfish)).items()
    assert promise == LEAVES_THE_LOOP
    assert "selfish held the event loop for" in problem


def test_an_agent_that_calls_its_model_until_it_is_stopped_has_no_reward() -> None:
    async def endless(task: dict[str, Any], chat: Chat) -> float:
        while True:
            await chat.complete(HELLO)

    (problem,) = broken(made_of(endless)).values()
    assert "endless returned no reward, on an answer" in problem
    assert problem.endswith("it was ended by turn_limit")


def test_a_service_that_is_away_is_no_broken_promise() -> None:
    async def waits(task: dict[str, Any], chat: Chat) -> float:
        await chat.complete(HELLO)
        raise InfrastructureError("the judge is away")

    with pytest.raises(InfrastructureError, match="the judge is away"):
        broken(made_of(waits))


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be called as"):
        broken(made_of(sound), tone="polite")


def test_the_command_prints_the_table_of_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"question": "Double 21."}\n')
    head = "from agentrl import rollout\n\n\n@rollout('test/checked')\n"
    (tmp_path / "agent.py").write_text(
        f"{head}async def solve(task, chat):\n    return float(task['no_such'])\n"
    )
    assert main(["env", "check", "agent.py", "--prompt-data", "rows.jsonl"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "agent test/checked",
        f"BAD {PLAYS}",
        "    test/checked raised KeyError: 'no_such' (agent.py:6) on an answer",
        "test/checked: 1 promise is broken",
    ]
