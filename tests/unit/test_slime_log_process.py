"""The process of a log function of the user's: what hangs, ends or answers wrongly is told."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.config.run import RunConfig
from agentrl.envs.slime_logs.process import MAX_LATE, AboutEvaluation, LogProcess
from agentrl.wire.messages import Logged

pytestmark = pytest.mark.slow

HANGING = """\
import time

calls = [0]

def f(rollout_id, args, data, extra_metrics):
    extra_metrics["calls"] = calls[0] = calls[0] + 1
    if rollout_id:
        open(args.custom_eval_rollout_log_function_path[:-2] + ".ready", "w").close()
        time.sleep(600)
"""


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[LogProcess]:
    """Hangs in what is not iteration 0."""
    (tmp_path / "mine.py").write_text(HANGING)
    os.mkfifo(tmp_path / "mine.py.ready")
    path = f"{tmp_path / 'mine.py'}:f"
    process = LogProcess(RunConfig(custom_eval_rollout_log_function_path=path), tmp_path / "log")
    yield process
    process.close()


def asked(process: LogProcess, iteration: int) -> Logged:
    process.ask(AboutEvaluation(iteration, {}))
    return process.answer(600.0)


def hung(process: LogProcess, folder: Path) -> Logged:
    process.ask(AboutEvaluation(1, {}))
    (folder / "mine.py.ready").read_bytes()  # waits for the function
    return process.answer(0.1)


def test_one_that_hangs_is_killed_and_another_process_begins(
    hanging: LogProcess, tmp_path: Path
) -> None:
    assert [asked(hanging, 0).figures for _ in range(2)] == [{"calls": 1.0}, {"calls": 2.0}]
    told = hung(hanging, tmp_path).told
    assert told.endswith(f"did not come to an end within 0.1 s; see {tmp_path / 'log'}")
    assert 'mine.py", line 9 in f' in (tmp_path / "log").read_text()
    assert asked(hanging, 0).figures == {"calls": 1.0}


def test_one_that_hangs_again_and_again_is_not_called_any_more(
    hanging: LogProcess, tmp_path: Path
) -> None:
    for _ in range(MAX_LATE):
        assert "did not come to an end" in hung(hanging, tmp_path).told
    found = asked(hanging, 0)
    assert (found.figures, found.told.endswith("it hung 3 times in a row")) == ({}, True)


ODD = """\
import msgspec

def f(rollout_id, args, data, extra_metrics):
    if rollout_id:
        msgspec.json.encode = lambda answer: b'{"figures": {"a": null}}'
    extra_metrics.update(a=float("nan"), b=1)
"""


def test_an_answer_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (path := tmp_path / "mine.py").write_text(ODD)
    place = f"{path}:f"
    process = LogProcess(RunConfig(custom_eval_rollout_log_function_path=place), tmp_path / "log")
    try:
        found = asked(process, 0)
        assert (found.figures, "left out was a (nan)" in found.told) == ({"b": 1.0}, True)
        told = asked(process, 1).told
    finally:
        process.close()
    assert told.startswith(f"--custom-eval-rollout-log-function-path {place}: the function is ans")
    assert "Expected `float`, got `null`" in told


#: Leaves a process that holds the pipe of answers, until it is let go.
LEAVING = """\
import os, time

def f(rollout_id, args, data, extra_metrics):
    extra_metrics["calls"] = 1
    path = args.custom_eval_rollout_log_function_path[:-2]
    if rollout_id and not os.fork():
        os.setsid()
        open(path + ".ready", "w").close()
        open(path + ".go").close()
        os._exit(0)
    if rollout_id:
        time.sleep(600)
"""


def test_what_a_killed_process_leaves_behind_takes_no_later_answer(
    hanging: LogProcess, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(LEAVING)
    os.mkfifo(tmp_path / "mine.py.go")
    before = {*threading.enumerate()}
    assert "did not come to an end" in hung(hanging, tmp_path).told
    (left,) = {*threading.enumerate()} - before
    hanging.ask(AboutEvaluation(0, {}))
    for asking in {*threading.enumerate()} - before - {left}:
        asking.join()
    (tmp_path / "mine.py.go").write_bytes(b"")
    left.join()
    assert hanging.answer(600.0).figures == {"calls": 1.0}
