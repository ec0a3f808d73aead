"""One weight push, and the wait until the buffer has committed what it was told.

Every rank walks all tensors, because gathering them is collective; only the source speaks to the
buffer and hands tensors to the engines. It tells the others before each walk that there is one
(`walks`), so that it may begin again where an engine was lost in a push: no tensor is copied to the
host for that. Sans-state: the caller keeps the lineage.
"""

from typing import TypeVar

from agentrl.errors import ConfigError
from agentrl.learner.backend import TrainBackend
from agentrl.learner.collective_errors import by_source
from agentrl.learner.collective_request import LearnerPeer
from agentrl.learner.walks import Walks, follow
from agentrl.types import PushReport, WeightSink
from agentrl.wire.messages import Republish, Welcome

__all__ = ["PATIENCE_S", "publish_weights", "settle", "told_of_engines"]

Heard = TypeVar("Heard")

#: Seconds that ranks wait in the midst of their tensors for a push that takes none.
PATIENCE_S = 60.0


def told_of_engines(heard: Heard, sink: WeightSink | None) -> Heard:
    """What the buffer said, once the sink knows where it says that engines are."""
    if isinstance(heard, Republish | Welcome) and heard.engines and sink is not None:
        sink.moved([engine for engine in heard.engines if engine.kind != "evaluation"])
    return heard


def publish_weights(
    backend: TrainBackend,
    sink: WeightSink | None,
    version: int,
    *,
    verify: bool = False,
    patience_s: float = PATIENCE_S,
) -> dict[str, float]:
    """Send the current weights to all engines as `version`. Collective; returns the metrics of what
    it cost, none but on the source. However long engines take, no collective waits for them longer
    than `patience_s`.

    `verify`: then ask every engine for the checksums of what it holds and compare. Raises PushError
    from the sink, on every rank; ConfigError for a source rank without one.
    """
    if not backend.is_source:
        follow(backend)
        return {}
    if sink is None:
        raise ConfigError("the source rank of the learner needs a weight sink to publish to")

    def push(tensors: Walks[PushReport]) -> PushReport:
        report = sink.publish(version, tensors)
        if verify:
            sink.verify(tensors)
        return report

    report = Walks(backend, push, patience_s).lead()
    return {
        "perf/push_s": report.total_s,
        "perf/push_pause_s": report.pause_s,
        "perf/push_bytes": float(report.num_bytes),
    }


def settle(backend: TrainBackend, peer: LearnerPeer, timeout_s: float) -> None:
    """Return when the buffer has committed all that the source told it. Collective; raises on every
    rank what it raises on the source, PeerLostError after `timeout_s`: it takes milliseconds, or as
    long as a buffer that died needs to come back."""
    by_source(backend, lambda: peer.flush(timeout_s), None)
