"""What a process of a run says by its exit code."""

from pathlib import Path

import anyio
import pytest

from agentrl.cluster.roles import __main__ as roles
from agentrl.cluster.supervision import CUT_OFF, HOOK_FAILED
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    DataError,
    EnvironmentSetupError,
    FencedError,
    HookError,
    PeerLostError,
    PushError,
)


def exit_code_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a process whose loop was ended by `error` in a task of a task."""

    async def fail() -> None:
        raise error

    async def work() -> None:
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            outer.start_soon(anyio.sleep_forever)
            inner.start_soon(fail)

    monkeypatch.setattr(roles, "setup_logging", lambda *_, **__: None)
    monkeypatch.setattr(roles, "read_spec", lambda path: None)
    return roles.main(["worker-0", str(Path("spec.json"))], lambda name, spec: anyio.run(work))


@pytest.mark.parametrize("kind", [ConfigError, EnvironmentSetupError, FencedError])
def test_an_error_keeps_its_exit_code_in_a_task_group(
    kind: type[AgentRLError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert exit_code_of(kind("a reason"), monkeypatch) == kind.exit_code
    assert "worker-0 stopped: a reason" in caplog.text


@pytest.mark.parametrize("kind", [PeerLostError, PushError])
def test_a_process_that_another_one_left_alone_says_so(
    kind: type[AgentRLError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a buffer that is slow to answer would cost a lease its groups."""
    assert exit_code_of(kind("no answer"), monkeypatch) == CUT_OFF


def test_a_function_of_the_user_s_is_told_from_bad_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a lease would lose its groups to a mistake in a function that is tried three times."""
    assert exit_code_of(HookError("--f x.py:f"), monkeypatch) == HOOK_FAILED
    assert exit_code_of(DataError("a row"), monkeypatch) == 65


def test_any_other_error_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert exit_code_of(KeyError("x"), monkeypatch) == 70
    assert "worker-0 stopped by a bug" in caplog.text
