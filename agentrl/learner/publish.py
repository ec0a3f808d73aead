"""One weight push: may it go, what the buffer is told of it, and the wait until it has that.

    PushGate   asked -> (a pinned evaluation runs) -> granted, or the learner is to stop

Every rank walks all tensors, because gathering them is collective; only the source speaks to the
buffer and hands tensors to the engines. Sans-state: the caller keeps the lineage.
"""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from agentrl.clock import Clock
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.learner.agreement import by_source
from agentrl.learner.asking import Asking, LearnerPeer, StopRequested
from agentrl.learner.backend import TrainBackend
from agentrl.types import WeightSink
from agentrl.wire.messages import Message, PushGrant, PushRequest

__all__ = ["FLUSH_TIMEOUT_S", "PushGate", "publish_weights", "settle"]

#: Deadline for the buffer to commit what it was told. It takes milliseconds, or as long as a buffer
#: that died needs to come back.
FLUSH_TIMEOUT_S = 60.0


class PushGate:
    """Waits with a push until no evaluation is pinned (`--eval-mode pinned`); else always open."""

    def __init__(self, cfg: RunConfig, asking: Asking, clock: Clock) -> None:
        self._is_open = cfg.eval_mode != "pinned"
        self._asking = asking
        self._clock = clock

    def wait(self, version: int) -> float | None:
        """Seconds until `version` may be pushed; None: the learner is to stop instead. Collective,
        and raises as `Asking.ask`.

        An engine that lacks weights ends the wait as well: what is held back could be all that the
        evaluation needs.
        """
        if self._is_open:
            return 0.0
        began = self._clock.now()

        def take(message: Message) -> PushGrant | None:
            is_mine = isinstance(message, PushGrant) and message.version == version
            return PushGrant(version) if is_mine else None

        answer = self._asking.ask(PushRequest(version), take, PushGrant)
        return None if isinstance(answer, StopRequested) else self._clock.now() - began


def publish_weights(
    backend: TrainBackend, sink: WeightSink | None, version: int, *, verify: bool = False
) -> dict[str, float]:
    """Send the current weights to all engines as `version`. Collective; returns the metrics of what
    it cost, none but on the source.

    `verify`: then ask every engine for the checksums of what it holds and compare. Raises PushError
    from the sink, ConfigError for a source rank without one.
    """
    if not backend.is_source:
        for _ in range(1 + verify):
            _exhaust(backend.hf_tensors())
        return {}
    if sink is None:
        raise ConfigError("the source rank of the learner needs a weight sink to publish to")
    tensors = backend.hf_tensors()
    report = sink.publish(version, tensors)
    _exhaust(tensors)
    if verify:
        tensors = backend.hf_tensors()
        sink.verify(tensors)
        _exhaust(tensors)
    return {
        "perf/push_s": report.total_s,
        "perf/push_pause_s": report.pause_s,
        "perf/push_bytes": float(report.num_bytes),
    }


def settle(backend: TrainBackend, peer: LearnerPeer) -> None:
    """Return when the buffer has committed all that the source told it. Collective; raises on every
    rank what it raises on the source, PeerLostError after FLUSH_TIMEOUT_S."""
    by_source(backend, lambda: peer.flush(FLUSH_TIMEOUT_S), None)


def _exhaust(tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Keep this rank in step with the others: nobody may leave a gather half way."""
    deque(tensors, maxlen=0)
