"""A signal before a run has begun: noted where nothing may be interrupted, raised where it may."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import agentrl.envs.search_r1
from agentrl.cluster.signals import InterruptedRunError, SignalGate, holding_sigint, in_turns
from agentrl.errors import FencedError

ROOT = Path(__file__).parents[2]
MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"


@pytest.fixture
def gate() -> Iterator[SignalGate]:
    with SignalGate() as gate:
        yield gate


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_is_raised_where_it_is_asked_for_and_nowhere_else(gate: SignalGate) -> None:
    gate.check()
    send(signal.SIGTERM)
    send(signal.SIGINT)
    with pytest.raises(InterruptedRunError) as caught:
        gate.check()
    assert caught.value.number == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_user_code_is_interrupted_as_python_does_it(
    gate: SignalGate, number: signal.Signals
) -> None:
    passed_by = []

    def user_code() -> None:
        try:
            send(number)
            passed_by.append("the next line")
        except Exception:
            passed_by.append("a broad except")

    with pytest.raises(InterruptedRunError) as caught, gate.interrupting():
        user_code()
    assert passed_by == []
    assert caught.value.number == number


@pytest.fixture
def _heard() -> Iterator[None]:
    """A shell that starts tests in the background has them, and what they start, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_heard")
def test_ctrl_c_waits_while_it_is_held_and_is_raised_after_that() -> None:
    before = signal.getsignal(signal.SIGINT)
    passed_by = []

    def imports() -> None:
        with holding_sigint():
            send(signal.SIGINT)
            passed_by.append("the next line")
        passed_by.append("the line after the block")

    with pytest.raises(KeyboardInterrupt):
        imports()
    assert passed_by == ["the next line"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("_heard")
def test_ctrl_c_before_a_run_waits_for_torch_and_ends_in_one_line(tmp_path: Path) -> None:
    """An exception in the midst of torch's start would end the process with SIGABRT."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "open('torch_is_there', 'w').close()\n"
    )
    shutil.copytree(MODEL, tmp_path / "model")  # of another model than the default job's
    argv = ["--env", "search-r1-local", "--hf-checkpoint", "model"]
    argv += ["--n-samples-per-prompt", "2", "--num-rollout", "1"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "train_async.py"), *argv],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr == "train_async: interrupted\n"
    assert (tmp_path / "torch_is_there").exists()


def test_user_code_that_swallows_a_signal_is_interrupted_by_the_next(gate: SignalGate) -> None:
    swallowed = []

    def user_code() -> None:
        for _ in range(3):
            with contextlib.suppress(KeyboardInterrupt):
                send(signal.SIGINT)
                return
            swallowed.append(1)

    with pytest.raises(InterruptedRunError), gate.interrupting():
        user_code()
    assert len(swallowed) == 3


def test_whatever_user_code_makes_of_a_signal_the_run_was_interrupted(gate: SignalGate) -> None:
    def user_code() -> None:
        try:
            send(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("no tasks") from None

    with pytest.raises(InterruptedRunError), gate.interrupting():
        user_code()


def test_an_error_without_a_signal_is_an_error(gate: SignalGate) -> None:
    with pytest.raises(ValueError, match="no tasks"), gate.interrupting():
        raise ValueError("no tasks")


def test_a_signal_from_before_keeps_user_code_from_beginning(gate: SignalGate) -> None:
    send(signal.SIGINT)
    with pytest.raises(InterruptedRunError), gate.interrupting():
        raise AssertionError("it began")


def test_handlers_that_user_code_installs_do_not_stay(gate: SignalGate) -> None:
    with gate.interrupting():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    send(signal.SIGINT)
    with pytest.raises(InterruptedRunError):
        gate.check()


def test_a_long_wait_ends_between_two_turns(gate: SignalGate) -> None:
    turns: list[float] = []

    def never(turn_s: float) -> bool:
        turns.append(turn_s)
        if len(turns) == 3:
            send(signal.SIGINT)
        return False

    with pytest.raises(InterruptedRunError):
        in_turns(never, 60.0, gate.check)
    assert len(turns) == 3
    assert all(0 < turn_s < 1 for turn_s in turns)


def test_a_wait_ends_when_it_is_over_or_too_late(gate: SignalGate) -> None:
    assert in_turns(lambda turn_s: True, 60.0, gate.check)
    assert not in_turns(lambda turn_s: False, 0.0, gate.check)


def test_a_process_that_was_replaced_ends_whatever_its_threads_are_doing() -> None:
    program = """
import logging, threading
from agentrl.cluster.signals import exit_at_once
from agentrl.errors import FencedError
logging.basicConfig()
threading.Thread(target=lambda: exit_at_once(FencedError("another has its place"))).start()
try:
    threading.Event().wait()
finally:
    print("still here")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == FencedError.exit_code
    assert (ended.stdout, "another has its place" in ended.stderr) == ("", True)


def test_a_log_that_cannot_be_written_does_not_keep_a_replaced_process() -> None:
    program = """
import logging, threading
from agentrl.cluster.signals import exit_at_once
from agentrl.errors import FencedError
logging.basicConfig()
with logging.getLogger().handlers[0].lock:  # as of a thread whose write does not return
    threading.Thread(target=lambda: exit_at_once(FencedError("another has its place"))).start()
    threading.Event().wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=300, check=False)
    assert ended.returncode == FencedError.exit_code
