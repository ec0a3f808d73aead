"""A push that begins again: every rank gathers the weights once more; none is kept on the host."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.learner.publish import publish_weights
from agentrl.serving.buckets import BucketStream
from agentrl.types import PushReport

NAMES = ("one", "two", "three")


class Ranks:
    """The backend of the source, which notes what it tells the others and how far each walk goes;
    and of another rank, which is told what was noted."""

    def __init__(self, told: list[bytes] | None = None) -> None:
        self.is_source = told is None
        self.told: list[bytes] = [] if told is None else told
        self.walks: list[list[str]] = []

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        if data is None:
            return self.told.pop(0)
        self.told.append(data)
        return data

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        self.walks.append(walk := [])
        for name in NAMES:
            walk.append(name)
            yield name, torch.ones(4)


class Sink:
    """Takes one bucket of a first push that fails, and then all of them."""

    def __init__(self) -> None:
        self.verified: list[str] = []

    def publish(self, _version: int, tensors: Any) -> PushReport:
        buckets = BucketStream(tensors, max_bytes=16)
        next(iter(buckets))
        sent = [name for bucket in buckets for name in bucket.names]
        assert sent == list(NAMES)
        return PushReport(version=3, pause_s=0.5, total_s=1.0, num_bytes=48, engines=("one",))

    def verify(self, tensors: Any) -> None:
        self.verified = [name for name, _ in tensors]


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def copied(_: Tensor) -> Tensor:
        raise AssertionError("a weight was copied to the host")

    monkeypatch.setattr(Tensor, "cpu", copied)


@pytest.mark.parametrize("verify", [False, True])
def test_a_push_that_begins_again_gathers_the_weights_again(no_copies: None, verify: bool) -> None:
    source, sink = Ranks(), Sink()
    found = publish_weights(source, sink, 3, verify=verify)  # type: ignore[arg-type]
    assert found["perf/push_bytes"] == 48
    assert source.walks == [list(NAMES)] * (2 + verify)
    assert sink.verified == (list(NAMES) if verify else [])
    other = Ranks(told=source.told)
    assert publish_weights(other, None, 3, verify=verify) == {}  # type: ignore[arg-type]
    assert other.walks == source.walks
    assert other.told == []
