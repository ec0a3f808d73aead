"""progress: the same words on a terminal and in a file."""

import contextlib
import io
import os
import pty
import re

import pytest

from agentrl.telemetry import progress as progress_module
from agentrl.telemetry.dropped import Dropped
from agentrl.telemetry.progress import Progress, duration, sparkline
from agentrl.telemetry.sinks import StepEvent
from tests.manual_clock import ManualClock


def event(step: int, reward: float = 0.5) -> StepEvent:
    return {
        "step": step,
        "metrics": {
            "rollout/reward_mean": reward,
            "train/age_max_trained": 3.0,
            "train/masked_token_share": 0.012,
            "buffer/ready": 6.0,
            "buffer/charged": 30.0,
            "perf/engine_tokens_per_s": 812.4,
            "perf/push_s": 0.0412,
        },
        "histograms": {"train/age_histogram": ([0, 1, 2, 3, 4, 5], [10, 80, 5, 0, 9])},
    }


def test_each_iteration_is_a_plain_line_in_a_file() -> None:
    stream, clock = io.StringIO(), ManualClock()
    with Progress(stream, 40, clock) as progress:
        for step, reward in ((1, 0.0), (2, 0.5), (3, 1.0)):
            progress.step(event(step, reward))
            clock.advance(10)
        progress.note("evaluation nq: 0.400")
    lines = stream.getvalue().splitlines()
    assert lines[0] == (
        "iteration 1/40  sampled reward 0.000 ▁  max age 3  masked 1.2 %  ready 6/30  812 tok/s  "
        "push 41 ms"
    )
    assert lines[2] == (
        "iteration 3/40  ETA 6m10s  sampled reward 1.000 ▁▅█  max age 3  masked 1.2 %  "
        "ready 6/30  812 tok/s  push 41 ms"
    )
    assert lines[3] == "evaluation nq: 0.400"


def test_the_line_in_the_modules_docstring_is_a_real_one() -> None:
    assert progress_module.__doc__ is not None
    (shown,) = re.findall(r"\n\n    (iteration .*\n .*)\n\n", progress_module.__doc__)
    stream, clock = io.StringIO(), ManualClock()
    with Progress(stream, 9, clock) as progress:
        for step, reward in ((1, 0.37), (2, 0.39), (3, 0.41)):
            progress.step(event(step, reward))
            clock.advance(10)
    assert stream.getvalue().splitlines()[2] == re.sub(r"\n +", "  ", shown)


def test_nothing_masked_and_nothing_sampled_are_not_worth_a_word() -> None:
    stream = io.StringIO()
    idle = {"train/age_max_trained": 0.0, "train/masked_token_share": 0.0}
    idle |= {"perf/engine_tokens_per_s": 0.0, "perf/push_s": 0.0}
    with Progress(stream, None, ManualClock()) as progress:
        progress.step({"step": 4, "metrics": idle})
    assert stream.getvalue() == "iteration 4  max age 0  push 0 ms\n"


def test_what_is_unknown_is_left_out() -> None:
    stream = io.StringIO()
    with Progress(stream, None, ManualClock()) as progress:
        progress.step({"step": 1, "metrics": {}})
        progress.step({"step": 2, "metrics": {"rollout/reward_mean": float("nan")}})
    assert stream.getvalue() == "iteration 1\niteration 2  sampled reward nan\n"


@pytest.mark.parametrize(
    ("environment", "live"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, 0)],
)
def test_a_terminal_gets_one_line_redrawn_unless_it_asks_for_plain_ones(
    environment: dict[str, str], live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "120")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, Progress(stream, 2, ManualClock()) as progress:
        progress.step(event(1))
        progress.note("evaluation nq: 0.400")
        progress.step(event(2))
    seen = read_all(master)
    assert ("\x1b[" in seen) is bool(live)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert "iteration 1/2  sampled reward 0.500" in plain
    assert "evaluation nq: 0.400" in plain
    assert "push 41 ms" in plain


@pytest.mark.parametrize(
    ("width", "num_bars", "last"),
    [(68, 1, "max age 3"), (118, 9, "push 41 ms"), (200, 16, "push 41 ms")],
)
def test_a_narrow_terminal_has_fewer_bars_and_then_fewer_words(
    width: int, num_bars: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    master, slave = pty.openpty()
    clock = ManualClock()
    with os.fdopen(slave, "w") as stream, Progress(stream, 40, clock) as progress:
        for step in range(1, 20):
            progress.step(event(step, reward=step / 20))
            clock.advance(4)
        progress.end("complete: 19 iterations")
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", read_all(master)).replace("\r", "\n")
    lines = [line.rstrip() for line in seen.splitlines() if line.strip()]
    assert lines[-1] == "complete: 19 iterations"
    assert lines[-2].startswith("iteration 19/40")
    assert lines[-2].endswith(last)
    assert len(re.findall("[▁-█]+", lines[-2])[0]) == num_bars


def live_line(monkeypatch: pytest.MonkeyPatch, width: int, dropped: Dropped) -> str:
    """An iteration on a terminal of this width."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream, Progress(stream, 40, ManualClock()) as progress:
        progress.step(event(1), dropped)
    return read_all(master)


def read_all(terminal: int) -> str:
    """What came to a terminal whose other end is closed (reading past the end is an error)."""
    chunks = []
    with os.fdopen(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while chunk := file.read(4096):
            chunks.append(chunk)
    return b"".join(chunks).decode()


def test_a_sparkline_spans_its_own_range() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3]) == "▁▁"
    assert sparkline([]) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m00s"), (130, "2m10s"), (3599.7, "1h00m"), (11_105, "3h05m")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_what_was_dropped_loses_its_cause_before_the_line_loses_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = Dropped(13, {"env_error": 2, "filtered": 1}, {"env_error": "ValueError: no gold"})
    assert str(dropped) == ("3 of 13 groups dropped: env_error 2 (ValueError: no gold), filtered 1")
    stream = io.StringIO()
    with Progress(stream, 40, ManualClock()) as progress:
        progress.step(event(1), dropped)
    assert f"sampled reward 0.500 ▁  {dropped}  max age 3" in stream.getvalue()
    shown = live_line(monkeypatch, 120, dropped)
    assert "3 of 13 groups dropped: env_error 2, filtered 1" in shown
    assert "no gold" not in shown
    assert "no gold" in live_line(monkeypatch, 200, dropped)


def test_a_note_can_not_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with Progress(stream, 40, ManualClock()) as progress:
        progress.note("note: \x1b[2J \u202e")
        progress.end("failed: \x9b2J\r")
    assert stream.getvalue() == "note: ␛[2J <U+202E>\nfailed: <U+009B>2J␍\n"
