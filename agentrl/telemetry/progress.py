"""The line a person watches while a run goes on; the only place of the library that prints.

On a terminal one line is redrawn (here it is broken). A narrow one has fewer bars first, and then
fewer of the last words:

    iteration 3/9  ETA 1m00s  sampled reward 0.410 ▁▅█  max age 3  masked 1.2 %  ready 6/30
        812 tok/s  push 41 ms

Groups that were dropped since the iteration before are said after its reward, with the newest cause
of each fate where there is room:

    3 of 13 groups dropped: env_error 2 (ValueError: no gold), filtered 1

Elsewhere, and under NO_COLOR, each iteration is a plain line of the same words. `max age` is the
greatest of a trained token. What is not known yet is left out, and so are a masked share and a
throughput of 0.
"""

import math
import os
from collections import deque
from collections.abc import Sequence
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentrl.clock import Clock
from agentrl.telemetry.dropped import Dropped
from agentrl.telemetry.sinks import StepEvent
from agentrl.visible import visible

__all__ = ["Progress", "duration", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_HISTORY = 16
_GAP = "  "


class Progress:
    """`with Progress(stream, total, clock) as progress`; `total` iterations, None: unknown. `how`:
    `sampled` or `greedy`, as the turns are that are rewarded."""

    def __init__(
        self, stream: TextIO, total: int | None, clock: Clock, *, how: str = "sampled"
    ) -> None:
        self._stream = stream
        self._total = total
        self._how = how
        self._clock = clock
        self._rewards: deque[float] = deque(maxlen=_HISTORY)
        self._ends: deque[float] = deque(maxlen=_HISTORY)
        self._live: Live | None = None

    def __enter__(self) -> Self:
        console = Console(file=self._stream)
        plain = console.is_dumb_terminal or os.environ.get("NO_COLOR")
        if self._stream.isatty() and not plain:
            self._live = Live(Text(), console=console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def step(self, event: StepEvent, dropped: Dropped | None = None) -> None:
        """Show an iteration, and what was dropped before it."""
        self._ends.append(self._clock.now())
        reward = event["metrics"].get("rollout/reward_mean")
        if reward is not None and math.isfinite(reward):
            self._rewards.append(reward)
        said = "" if dropped is None else str(dropped)
        words = self._words(event, _HISTORY, said)
        if self._live is None:
            self._print(_GAP.join(words))
            return
        width = self._live.console.width
        if dropped is not None and len(_GAP.join(words)) > width:
            words = self._words(event, _HISTORY, said := dropped.short)
        surplus = len(_GAP.join(words)) - width
        if surplus > 0:
            words = self._words(event, max(1, _HISTORY - surplus), said)
        while len(_GAP.join(words)) > width and len(words) > 1:
            words.pop()
        self._live.update(self._styled(words), refresh=True)

    def note(self, text: str) -> None:
        """Show a line of its own, above the live one: a phase of the start, an evaluation."""
        text = visible(text)
        if self._live is None:
            self._print(text)
        else:
            self._live.console.print(Text(text))

    def end(self, text: str) -> None:
        """Show the last line: below all others, the last iteration too."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._print(visible(text))

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def _words(self, event: StepEvent, num_bars: int, dropped: str) -> list[str]:
        step, metrics = event["step"], event["metrics"]
        left_s = self._left_s(step)
        words = [f"iteration {step}" + (f"/{self._total}" if self._total else "")]
        if left_s is not None:
            words.append(f"ETA {duration(left_s)}")
        if "rollout/reward_mean" in metrics:
            bars = sparkline(list(self._rewards)[-num_bars:])
            words.append(f"{self._how} reward {metrics['rollout/reward_mean']:.3f} {bars}".rstrip())
        words += [dropped] if dropped else []
        words += [
            form.format(*(metrics[name] * scale for name in names))
            for form, scale, names in _PARTS
            if all(name in metrics and (metrics[name] or name not in _UNLESS_0) for name in names)
        ]
        return words

    def _left_s(self, step: int) -> float | None:
        if self._total is None or len(self._ends) < 2:
            return None
        mean_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return mean_s * max(self._total - step, 0)

    def _styled(self, words: Sequence[str]) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, word in enumerate(words):
            text.append(_GAP * (number > 0) + word, style="bold" if number == 0 else "")
        return text


_PARTS: tuple[tuple[str, float, tuple[str, ...]], ...] = (
    ("max age {:.0f}", 1, ("train/age_max_trained",)),
    ("masked {:.3g} %", 100, ("train/masked_token_share",)),
    ("nll {:.3f}", 1, ("train/nll",)),
    ("ready {:.0f}/{:.0f}", 1, ("buffer/ready", "buffer/charged")),
    ("{:.0f} tok/s", 1, ("perf/engine_tokens_per_s",)),
    ("push {:.0f} ms", 1000, ("perf/push_s",)),
)
_UNLESS_0 = ("train/masked_token_share", "perf/engine_tokens_per_s")


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """Bars of `values` between their own least and greatest; finite values only."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if high == low:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in values)


def duration(seconds: float) -> str:
    """Seconds for people: 8s, 2m10s, 3h05m."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
