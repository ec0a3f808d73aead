"""The engines that take part in weight pushes: who is in, who fell out, what each of them holds.

    present -> lost, when a push could not reach it -> present again, at a push that finds it ready

Calls come from the thread that pushes; HTTP runs in an event loop of a thread of its own.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import torch
from anyio.from_thread import start_blocking_portal

from agentrl.clock import Clock
from agentrl.errors import EngineError, PushError
from agentrl.serving.checksums import Fused, expected_checksums
from agentrl.serving.control import EngineChecksum, EngineControl, HeldWeights
from agentrl.serving.fleet import Call, Outcomes, failures_of, start_calls
from agentrl.serving.seals import Seals, Sent
from agentrl.types import EngineAddress, PushReport
from agentrl.visible import shown_url

__all__ = ["Members", "NamedTensors", "NoEngineError"]

logger = logging.getLogger(__name__)

NamedTensors = Iterable[tuple[str, torch.Tensor]]

#: Seconds between looks for an engine that has come back, when there is none at all.
_RECALL_S = 0.5


class _Asked(NamedTuple):
    """Engines were asked what they hold, after the push of `version`; `found` fills up as they
    answer. What the `forgotten` hold is nobody's fault."""

    version: int
    sent: Sent
    calls: Outcomes
    found: dict[str, HeldWeights]
    forgotten: set[str]


class NoEngineError(PushError):
    """Every engine was lost on the way."""

    def __init__(self, version: int) -> None:
        super().__init__(
            f"version {version} reached no engine: all of them are lost; the log of the learner "
            "says why each was"
        )


class Members:
    """`engines`, each with a control of its own in the loop of `portal`. Close it. The rest is as
    `FleetWeightSink` says."""

    def __init__(
        self,
        engines: Sequence[EngineAddress],
        *,
        timeout_s: float,
        key: str | None,
        clock: Clock,
        on_lost: Callable[[EngineAddress], None],
        engine_dtype: torch.dtype | None,
        fused: Fused | None,
        tells_digests: bool,
        pushes_draft: bool = False,
    ) -> None:
        self._timeout_s = timeout_s
        self._key = key
        self._clock = clock
        self._on_lost = on_lost
        self._engine_dtype = engine_dtype
        self._fused = fused or {}
        self._tells_digests = tells_digests
        self._pushes_draft = pushes_draft
        self._seals = Seals()
        self._asked: _Asked | None = None
        self._unseen: set[str] = set()
        self._lost: list[EngineControl] = []
        self._resources = ExitStack()
        self.portal = self._resources.enter_context(start_blocking_portal("asyncio"))
        self.present = [self._control(engine) for engine in engines]

    def close(self) -> None:
        """Speak to no engine any more."""
        self._resources.close()

    def reach(self, push: Callable[[list[EngineControl]], PushReport]) -> PushReport:
        """What `push` returns, which is told who has come back. While there is no engine at all it
        waits for one, and tries again, up to the deadline; then it raises NoEngineError."""
        deadline = self._clock.now() + self._timeout_s
        while True:
            try:
                return push(self._recall())
            except NoEngineError:
                if self._clock.now() >= deadline:
                    raise
            time.sleep(_RECALL_S)

    def each(self, call: Call) -> None:
        """The same call to every one at once; those that fail it are lost."""
        for member, error in self.failures(self.present, call).items():
            self.lose(member, error)

    def failures(
        self, members: Iterable[EngineControl], call: Call
    ) -> dict[EngineControl, EngineError]:
        """The same call to `members` at once; those that failed it, and why."""
        return failures_of(start_calls(self.portal, members, call))

    def lose(self, member: EngineControl, reason: Exception) -> None:
        """It falls out of the push, and is told of."""
        self.present.remove(member)
        self._lost.append(member)
        self._forget(member.name)
        logger.error("%s fell out of a weight push: %s", member.name, reason)
        self._on_lost(member.engine)

    def moved(self, engines: Iterable[EngineAddress]) -> list[EngineControl]:
        """Speak to each of these where it is now, once it answers: what is new or has moved counts
        as lost until then. Returns those that were present, elsewhere: nobody is there any more."""
        known = {member.name: member for member in (*self.present, *self._lost)}
        gone = []
        for engine in engines:
            old = known.get(engine.name)
            if old is not None and old.url == engine.url.rstrip("/"):
                continue
            if old in self.present:
                self.present.remove(old)
                gone.append(old)
            elif old is not None:
                self._lost.remove(old)
            self._forget(engine.name)
            self._lost.append(self._control(engine))
            logger.info("%s is at %s now", engine.name, shown_url(engine.url))
        return gone

    def _recall(self) -> list[EngineControl]:
        """Let those that fell out earlier take part again if they answer, with all that weights
        take: one whose server alone does would hold up every push. Returns them."""
        asked = {member: self.portal.start_task_soon(member.is_alive) for member in self._lost}
        back = [member for member, answer in asked.items() if answer.result()]
        for member in back:
            logger.info("%s is back for weight pushes", member.name)
            self._lost.remove(member)
        self.present += back
        return back

    def _control(self, engine: EngineAddress) -> EngineControl:
        control = EngineControl(
            engine, timeout_s=self._timeout_s, key=self._key, pushes_draft=self._pushes_draft
        )
        return self._resources.enter_context(self.portal.wrap_async_context_manager(control))

    # ---- what they hold ----------------------------------------------------------------------

    def look(self) -> "_Asked":
        """Ask engines what they hold, and wait for no answer: for an `inspect` soon after."""
        return self._ask()

    def inspect(self, look: "_Asked | None" = None) -> None:
        """Raise HealthError that names an engine whose weights are not those of its last push, or
        which that push did not change."""
        if (asked := self._asked) is not None:
            self._asked = None
            self._seals.renew(asked.version, asked.sent, self._answers(asked))
        self._seals.check(self._answers(look or self._ask()))

    def renew(self, version: int, sent: Sent) -> None:
        """Ask engines what they hold after the push of `version`, and wait for no answer: the next
        `inspect` judges them. Turns and learner go on meanwhile."""
        self._asked = self._ask(version, sent)

    def forget(self) -> None:
        """What engines hold from now on is nobody's fault."""
        for member in self.present:
            self._forget(member.name)

    def _forget(self, name: str) -> None:
        self._seals.forget(name)
        if self._asked is not None:
            self._asked.forgotten.add(name)

    def verify(self, tensors: NamedTensors) -> None:
        """Check, tensor by tensor, that every engine holds exactly `tensors`.

        For engines on a CPU host with one rank each: the digests are SGLang's for host memory, of
        whole parameters. A configuration with others is refused before a run starts.
        Raises PushError that names the engine and the first tensors that differ.
        """
        expected = expected_checksums(tensors, self._fused, self._engine_dtype)
        for member in self.present:
            actual = self._checksum(member).tensors
            wrong = sorted(n for n in actual if actual[n] != expected.get(n, actual[n]))
            missing = sorted(expected.keys() - actual.keys())
            if wrong or missing:
                raise PushError(
                    f"{member.name}: {len(wrong)} tensors differ ({wrong[:3]}) and"
                    f" {len(missing)} are missing ({missing[:3]}) after a push"
                )

    def _ask(self, version: int = 0, sent: Sent = None) -> "_Asked":
        """Ask each engine for its weights, in the loop of the portal."""
        found: dict[str, HeldWeights] = {}

        async def ask(member: EngineControl) -> None:
            found[member.name] = await member.held(with_digest=self._tells_digests)

        return _Asked(version, sent, start_calls(self.portal, self.present, ask), found, set())

    def _answers(self, asked: "_Asked") -> dict[str, HeldWeights]:
        """Wait for the answers; engines that do not say, or were lost or forgotten since, are left
        out."""
        calls = {member: call for member, call in asked.calls.items() if member in self.present}
        failed = failures_of(calls)
        for member, error in failed.items():
            if member.name not in self._unseen:
                logger.warning("nobody can tell which weights %s holds: %s", member.name, error)
        self._unseen = {member.name for member in failed}
        names = {member.name for member in calls} - asked.forgotten
        return {name: held for name, held in asked.found.items() if name in names}

    def _checksum(self, member: EngineControl) -> EngineChecksum:
        return self.portal.call(member.checksum)
