"""One weight push, and the wait until the buffer has committed what it was told.

Every rank walks all tensors, because gathering them is collective; only the source speaks to the
buffer and hands tensors to the engines. Sans-state: the caller keeps the lineage.
"""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.learner.agreement import by_source
from agentrl.learner.asking import LearnerPeer
from agentrl.learner.backend import TrainBackend
from agentrl.types import WeightSink

__all__ = ["FLUSH_TIMEOUT_S", "publish_weights", "settle"]

#: Deadline for the buffer to commit what it was told. It takes milliseconds, or as long as a buffer
#: that died needs to come back.
FLUSH_TIMEOUT_S = 60.0


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
