"""An engine that serves turns by continuous batching, approximated as processor sharing.

With b turns in the batch each of them gets a token every `token_s + request_s * b` seconds. A push
pauses all of them; the tokens after it belong to the new weights, the token that was under way with
them. Prefill, caches and their eviction are not modelled.

    PAUSED <-> SERVING        any -> LOST
"""

import heapq
from collections.abc import Callable

import msgspec

from agentrl.sim.timeline import Timeline, Timer
from agentrl.sim.truth import PublishedWeights

__all__ = ["Engine", "SimTurn", "Speed"]

#: Tokens by which rounding may miss the end of a turn.
_NEAR = 1e-6

Spans = list[tuple[PublishedWeights, int]]


class Speed(msgspec.Struct, frozen=True):
    """Seconds a token takes: `token_s + request_s * b` in a batch of b turns."""

    token_s: float = 0.020
    request_s: float = 0.0001

    @property
    def alone_s(self) -> float:
        """Seconds a token takes in a batch of one."""
        return self.token_s + self.request_s


class SimTurn:
    """One generation; `done` gets its tokens by weights, in order, `failed` is for a lost engine.

    `start` and `end` are on its engine's own axis: the tokens that a turn there would have sampled.
    """

    __slots__ = ("done", "end", "failed", "live", "num_tokens", "since", "start")

    def __init__(
        self, num_tokens: int, done: Callable[[Spans], None], failed: Callable[[], None]
    ) -> None:
        self.num_tokens = num_tokens
        self.done = done
        self.failed = failed
        self.live = True
        self.start = self.end = 0.0
        self.since = 0


class Engine:
    """`num_turns` in the batch, `load` episodes routed here; seconds with a batch in `busy_s`."""

    def __init__(self, timeline: Timeline, speed: Speed) -> None:
        self._timeline = timeline
        self._speed = speed
        self._tokens = 0.0
        self._at = 0.0
        self._order = 0
        self._batch: list[tuple[float, int, SimTurn]] = []
        self._timer: Timer | None = None
        self._history: list[tuple[float, PublishedWeights]] = []
        self.serving = False
        self.lost = False
        self.num_turns = 0
        self.load = 0
        self.busy_s = 0.0

    def submit(self, turn: SimTurn) -> None:
        """Add a turn to the batch."""
        self._advance()
        turn.start, turn.since = self._tokens, len(self._history) - 1
        turn.end = turn.start + turn.num_tokens
        self._order += 1
        heapq.heappush(self._batch, (turn.end, self._order, turn))
        self.num_turns += 1
        self._arm()

    def cancel(self, turn: SimTurn) -> None:
        """Take a turn out of the batch."""
        self._advance()
        turn.live = False
        self.num_turns -= 1
        self._arm()

    def pause(self) -> None:
        """Keep the batch as it is."""
        self._advance()
        self.serving = False
        self._arm()

    def resume(self, weights: PublishedWeights) -> None:
        """Go on, under `weights`."""
        self._advance()
        if not self._history or self._history[-1][1] is not weights:
            self._history.append((self._tokens, weights))
        self.serving = True
        self._arm()

    def lose(self) -> None:
        """The process ends; every turn in the batch fails."""
        self._advance()
        self.serving, self.lost = False, True
        failed = [turn for _, _, turn in sorted(self._batch) if turn.live]
        self._batch, self.num_turns, self.load = [], 0, 0
        self._arm()
        for turn in failed:
            turn.live = False
            turn.failed()

    def measure(self) -> None:
        """Bring `busy_s` up to now."""
        self._advance()

    def _advance(self) -> None:
        now = self._timeline.now
        elapsed, self._at = now - self._at, now
        if self.num_turns and self.serving:
            speed = self._speed
            self._tokens += elapsed / (speed.token_s + speed.request_s * self.num_turns)
            self.busy_s += elapsed

    def _arm(self) -> None:
        """Look again when the first turn ends. A look that is planned for too early finds nothing
        and plans the next one, which is cheaper than planning anew at every change."""
        batch = self._batch
        while batch and not batch[0][2].live:
            heapq.heappop(batch)
        if not batch or not self.serving:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        token_s = self._speed.token_s + self._speed.request_s * self.num_turns
        wait_s = max(0.0, (batch[0][0] - self._tokens) * token_s)
        if self._timer is not None:
            if self._timer.when <= self._timeline.now + wait_s:
                return
            self._timer.cancel()
        self._timer = self._timeline.after(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._advance()
        batch, ended = self._batch, []
        while batch and (batch[0][0] <= self._tokens + _NEAR or not batch[0][2].live):
            turn = heapq.heappop(batch)[2]
            if turn.live:
                turn.live = False
                self.num_turns -= 1
                ended.append(turn)
        self._arm()
        for turn in ended:
            turn.done(self._spans(turn))

    def _spans(self, turn: SimTurn) -> Spans:
        """Whole tokens that were sampled before a push belong to the weights before it."""
        history = self._history
        spans, sampled = [], 0
        for index in range(turn.since, len(history) - 1):
            until = min(turn.num_tokens, int(history[index + 1][0] - turn.start + _NEAR))
            if until > sampled:
                spans.append((history[index][1], until - sampled))
                sampled = until
        if turn.num_tokens > sampled:
            spans.append((history[-1][1], turn.num_tokens - sampled))
        return spans
