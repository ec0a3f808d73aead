"""One weight push, and what the buffer is told of it.

Every rank walks all tensors, because gathering them is collective; only the source hands them to
the engines. Sans-state: the caller keeps the lineage.
"""

from collections import deque
from collections.abc import Iterator

from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.learner.backend import TrainBackend
from agentrl.types import PushReport, WeightSink

__all__ = ["publish_weights"]


def publish_weights(
    backend: TrainBackend, sink: WeightSink | None, version: int, *, verify: bool = False
) -> PushReport | None:
    """Send the current weights to all engines as `version`. Collective; None but on the source.

    `verify`: then ask every engine for the checksums of what it holds and compare. Raises PushError
    from the sink, ConfigError for a source rank without one.
    """
    if not backend.is_source:
        for _ in range(1 + verify):
            _exhaust(backend.hf_tensors())
        return None
    if sink is None:
        raise ConfigError("the source rank of the learner needs a weight sink to publish to")
    tensors = backend.hf_tensors()
    report = sink.publish(version, tensors)
    _exhaust(tensors)
    if verify:
        tensors = backend.hf_tensors()
        sink.verify(tensors)
        _exhaust(tensors)
    return report


def _exhaust(tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Keep this rank in step with the others: nobody may leave a gather half way."""
    deque(tensors, maxlen=0)
