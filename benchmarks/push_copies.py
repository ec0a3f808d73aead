"""What a weight push asks of the host at the stage of the export: gathered, named and packed."""

from collections.abc import Iterable
from typing import Any

import torch

from agentrl.config.run import RunConfig
from agentrl.learner.megatron import MegatronBackend
from agentrl.learner.publish import publish_weights
from agentrl.serving.buckets import BucketStream
from agentrl.types import PushReport
from benchmarks.host_traffic import HostTraffic

__all__ = ["copies_of_push"]


#: Where ranks tell each other to begin: words that are on the host, and no weights.
_WORDS = frozenset({"agentrl.learner.megatron.parallel._broadcast"})


class _Packing:
    """Takes the buckets as the sender of a fleet does, once again after an engine was lost, and
    sends them nowhere."""

    def __init__(self, bucket_bytes: int, device: torch.device) -> None:
        self._bucket_bytes, self._device = bucket_bytes, device

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        buckets = BucketStream(tensors, self._bucket_bytes)
        next(iter(buckets))
        sent = sum(bucket.payload.to(self._device).nbytes for bucket in buckets)
        return PushReport(version, pause_s=0.0, total_s=0.0, num_bytes=sent, engines=())


def copies_of_push(backend: MegatronBackend, bucket_bytes: int | None = None) -> HostTraffic:
    """What the export of one push by a learner of one rank made the host wait for, or copied to
    it. Raises ValueError where nothing was sent."""
    size = bucket_bytes or RunConfig().update_weight_buffer_size
    device = next(tensor.device for _, tensor in backend.hf_tensors())
    sink: Any = _Packing(size, device)
    with HostTraffic(_WORDS) as traffic:
        told = publish_weights(backend, sink, 1)
    if not told["perf/push_bytes"]:
        raise ValueError("the learner sent no weights")
    return traffic
