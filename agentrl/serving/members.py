"""The engines that take part in weight pushes: who is in, who fell out, what each of them holds.

    present -> lost, when a push could not reach it -> present again, at a push that finds it ready

Calls come from the thread that pushes; HTTP runs in an event loop of a thread of its own.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import torch
from anyio.from_thread import BlockingPortal

from agentrl.errors import PushError
from agentrl.serving.checksums import Fused, expected_checksums
from agentrl.serving.control import EngineChecksum, EngineControl, HeldWeights
from agentrl.serving.fleet import failures_of, start_calls
from agentrl.serving.seals import Seals, Sent
from agentrl.types import EngineAddress

__all__ = ["Members", "NamedTensors"]

logger = logging.getLogger(__name__)

NamedTensors = Iterable[tuple[str, torch.Tensor]]


class Members:
    """`engines`, each with a control of its own in `portal`'s loop. The rest as `FleetWeightSink`
    says."""

    def __init__(
        self,
        engines: Sequence[EngineAddress],
        *,
        portal: BlockingPortal,
        open_control: Callable[[EngineAddress], EngineControl],
        on_lost: Callable[[EngineAddress], None],
        engine_dtype: torch.dtype | None,
        fused: Fused | None,
        tells_digests: bool,
    ) -> None:
        self._portal = portal
        self._on_lost = on_lost
        self._engine_dtype = engine_dtype
        self._fused = fused or {}
        self._tells_digests = tells_digests
        self._seals = Seals()
        self._unseen: set[str] = set()
        self._lost: list[EngineControl] = []
        self.present = [open_control(engine) for engine in engines]

    def lose(self, member: EngineControl, reason: Exception) -> None:
        """It falls out of the push, and is told of."""
        self.present.remove(member)
        self._lost.append(member)
        self._seals.forget(member.name)
        logger.error("%s fell out of a weight push: %s", member.name, reason)
        self._on_lost(EngineAddress(member.name, member.url))

    def recall(self) -> list[EngineControl]:
        """Let those that fell out earlier take part again if they answer; returns them."""
        back = [member for member in self._lost if self._portal.call(member.is_alive)]
        for member in back:
            logger.info("%s is back for weight pushes", member.name)
            self._lost.remove(member)
        self.present += back
        return back

    # ---- what they hold ----------------------------------------------------------------------

    def inspect(self) -> None:
        """Raise HealthError that names an engine whose weights are not those of its last push."""
        self._seals.check(self._held())

    def renew(self, version: int, sent: Sent) -> None:
        """Take in what engines hold after the push of `version`. Raises HealthError."""
        self._seals.renew(version, sent, self._held())

    def forget(self) -> None:
        """What engines hold from now on is nobody's fault."""
        for member in self.present:
            self._seals.forget(member.name)

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

    def _held(self) -> dict[str, HeldWeights]:
        """What each engine says of its weights; those that do not say are left out."""
        found: dict[str, HeldWeights] = {}

        async def ask(member: EngineControl) -> None:
            found[member.name] = await member.held()

        members = self.present if self._tells_digests else []
        for member, error in failures_of(start_calls(self._portal, members, ask)).items():
            if member.name not in self._unseen:
                logger.warning("nobody can tell which weights %s holds: %s", member.name, error)
        self._unseen = {member.name for member in members} - found.keys()
        return found

    def _checksum(self, member: EngineControl) -> EngineChecksum:
        return self._portal.call(member.checksum)
