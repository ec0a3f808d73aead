"""The learner of a run whose engines sample with the weights of some iterations ago.

    python -m benchmarks.lagged_learner LAG NAME SPEC

The process is the run's own (`agentrl.cluster.roles.learner`); what stands between it and the
engines is a `LaggedSink`. With a push every iteration a token is then LAG iterations old when it is
trained, as far as generation does not run ahead as well. `benchmarks.lagged` starts it.
"""

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from agentrl.cluster.roles.__main__ import main as role
from agentrl.cluster.spec import RunSpec
from agentrl.types import EngineAddress, PushReport, WeightSink

__all__ = ["LaggedSink", "main"]


class _Kept(NamedTuple):
    """Weights of a version, by Hugging Face name."""

    version: int
    tensors: list[tuple[str, Any]]


class LaggedSink:
    """A `WeightSink` that gives engines what it was given `lag` publishes before, under the number
    that those weights had then: what an engine says of its tokens is true, and so are their ages.

    The first `lag` publishes give the first weights again and again. It keeps copies of lag + 1
    versions. A learner that was started anew has kept none, so its lag grows from 0 again.
    """

    def __init__(self, sink: WeightSink, lag: int) -> None:
        self._sink = sink
        self._kept: deque[_Kept] = deque(maxlen=lag + 1)

    def publish(self, version: int, tensors: Iterable[tuple[str, Any]]) -> PushReport:
        """See `WeightSink`; the report is of the older version. A version that comes again (for
        engines that were late) takes the place of itself."""
        copies = [(name, tensor.detach().clone()) for name, tensor in tensors]
        if self._kept and self._kept[-1].version == version:
            self._kept.pop()
        self._kept.append(_Kept(version, copies))
        return self._sink.publish(*self._kept[0])

    def inspect(self) -> None:
        """See `WeightSink`."""
        self._sink.inspect()

    def verify(self, tensors: Iterable[tuple[str, Any]]) -> None:
        """Raise PushError unless every engine holds what was published last; `tensors`, which are
        newer, are only used up."""
        deque(tensors, maxlen=0)
        self._sink.verify(self._kept[0].tensors)

    def moved(self, engines: Sequence[EngineAddress], /) -> None:
        """See `WeightSink`."""
        self._sink.moved(engines)

    def close(self) -> None:
        """See `WeightSink`."""
        self._sink.close()


def main(argv: list[str]) -> int:
    """Become the learner NAME of the run in SPEC; returns the exit code of the process."""
    lag = int(argv[0])

    def run(name: str, spec: RunSpec) -> None:
        from agentrl.cluster.roles.learner import main as learner

        learner(spec, int(name.partition("-")[2]), partial(LaggedSink, lag=lag))

    return role(argv[1:], run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
