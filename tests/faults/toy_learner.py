"""The learner of a lab: production loop, checkpoints and weight pushes, and a model of one table.

Its checkpoint holds the groups that its weights were trained on, lease by lease. So what is trained
in the surviving lineage of weights is not what somebody says of it, but what the weights carry.
"""

import hashlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.clock import MonotonicClock
from agentrl.cluster.layout import INCARNATION
from agentrl.cluster.signals import exit_at_once
from agentrl.cluster.spec import RunSpec, read_spec
from agentrl.errors import AgentRLError
from agentrl.learner import checkpoints
from agentrl.learner.backend import StepResult
from agentrl.learner.loop import run_learner
from agentrl.serving.collective import SenderGroup
from agentrl.serving.routing import RoutedWeightSink
from agentrl.serving.weights import FleetWeightSink
from agentrl.telemetry.logging import setup_logging
from agentrl.types import EngineAddress
from agentrl.wire.blocking import BlockingPeer
from agentrl.wire.messages import Lease, Message, Retire, Stepped, Welcome
from tests.collectives import Threads
from tests.faults.collective import TcpGroup
from tests.faults.engine import ROWS, VOCAB
from tests.faults.history import FOLDER, note
from tests.faults.points import reached, reports
from tests.integration.toy_backend import ToyBackend

__all__ = ["main"]

logger = logging.getLogger("agentrl.lab")

Consumed = list[tuple[int, list[int]]]


class _Group(Threads):
    def gather(self, rank: int, value: Any) -> list[Any]:
        if isinstance(value, tuple):  # gradient and metrics: between backward and step
            reached("backward")
        return super().gather(rank, value)


class LabBackend(ToyBackend):
    """A table of scores, trained by SGD. `consumed`: leases and their mints, in the order in which
    these weights were trained on them."""

    def __init__(self) -> None:
        super().__init__(_Group(1), 0, lr=1.0)
        self.table = torch.zeros(ROWS, VOCAB, requires_grad=True)
        self._initial = self.table.detach().clone()
        self.consumed: Consumed = []
        self.inputs = hashlib.blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """Names the weights."""
        return hashlib.blake2b(self.table.detach().numpy().tobytes(), digest_size=8).hexdigest()

    def _scores(self, table: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs_TV = torch.log_softmax(table[batch.tokens_T % ROWS], dim=-1)
        entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
        return logprobs_TV.gather(1, batch.labels_T[:, None]).squeeze(1), entropy_T

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        def loss_after_forward(*args: Any) -> tuple[Tensor, dict[str, Tensor]]:
            reached("forward")
            return loss_fn(*args)

        for batch in micro_batches:
            for tensor in (
                batch.tokens_T,
                *(batch.columns[name] for name in sorted(batch.columns)),
            ):
                self.inputs.update(tensor.numpy().tobytes())
        result = super().step(model, micro_batches, loss_after_forward, lr_scale)
        reached("stepped")
        return result

    def save_hf(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "table").write_bytes(self.table.detach().numpy().tobytes())
        (directory / "consumed.json").write_bytes(msgspec.json.encode(self.consumed))

    def state_files(self) -> dict[str, bytes]:
        return super().state_files() | {"consumed.json": msgspec.json.encode(self.consumed)}

    def write_state(self, directory: Path, files: Mapping[str, bytes]) -> None:
        *first, last = files
        super().write_state(directory, {name: files[name] for name in first})
        reached("half_written")
        super().write_state(directory, {last: files[last]})

    def load_state(self, directory: Path) -> None:
        super().load_state(directory)
        data = (directory / "consumed.json").read_bytes()
        self.consumed = msgspec.json.decode(data, type=Consumed)


class LabPeer:
    """The learner's connection: what it is given and what it tells goes into the history."""

    def __init__(self, peer: BlockingPeer, backend: LabBackend) -> None:
        self._peer = peer
        self._backend = backend
        self._leases: dict[int, tuple[Lease, str]] = {}
        self._last_trained = -1

    @property
    def welcome(self) -> Welcome:
        return self._peer.welcome

    def send(self, message: Message, /) -> None:
        self._peer.send(message)

    def deliver(self, message: Message, /) -> None:
        if isinstance(message, Stepped):
            self._trained(message.number)
        if isinstance(message, Retire):
            reached("before_retire", through=message.through)
        self._peer.deliver(message)

    def receive(self, timeout_s: float, /) -> tuple[Message, Sequence[Any]]:
        message, columns = self._peer.receive(timeout_s)
        if isinstance(message, Lease):
            reached("leased", lease=message.header.number)
            self._begin(message)
        return message, columns

    def flush(self, timeout_s: float, /) -> None:
        self._peer.flush(timeout_s)

    def _begin(self, lease: Lease) -> None:
        """A lease that comes again, late, begins nothing."""
        number = lease.header.number
        _meet_a_bug(lease)
        if number > self._last_trained and number not in self._leases:
            self._leases[number] = lease, self._backend.digest
            self._backend.inputs = hashlib.blake2b(digest_size=8)

    def _trained(self, number: int) -> None:
        lease, before = self._leases.pop(number)
        self._last_trained = number
        header = lease.header
        mints = [group.mint for group in header.groups]
        self._backend.consumed.append((number, mints))
        note(
            "trained",
            lease=number,
            mints=mints,
            rows=[(row.episode, row.payload.xxh3) for g in header.groups for row in g.trajectories],
            inputs=self._backend.inputs.hexdigest(),
            before=before,
            after=self._backend.digest,
        )


def _meet_a_bug(lease: Lease) -> None:
    """One that a test has planted: the learner does not survive the group of this number."""
    path = Path(os.environ[FOLDER]) / "bug"
    if path.exists() and int(path.read_text()) in [group.mint for group in lease.header.groups]:
        raise RuntimeError(f"a planted bug in lease {lease.header.number}")


class _Sink(FleetWeightSink):
    def _open_group(self, name: str) -> SenderGroup:
        return TcpGroup(name, host=self._host, timeout_s=self._timeout_s)


def _sink(spec: RunSpec) -> RoutedWeightSink:
    def open_sink(on_lost: Callable[[EngineAddress], None]) -> FleetWeightSink:
        return _Sink(
            spec.engines,
            bucket_bytes=1 << 20,
            timeout_s=spec.config.update_weights_timeout,
            fleet_size=spec.config.update_weights_fleet_size,
            on_lost=on_lost,
        )

    assert spec.router_url is not None
    return RoutedWeightSink(spec.router_url, spec.engines, open_sink)


def _train(spec: RunSpec) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    reports(checkpoints, "seal", lambda *_, **__: reached("renamed"))
    reports(TcpGroup, "broadcast", lambda *_: reached("pushing"), before=True)
    backend = LabBackend()
    sink = _sink(spec)
    connection = BlockingPeer(
        spec.buffer_address,
        role="learner",
        name="learner-0",
        incarnation=os.environ.get(INCARNATION),
        on_fenced=exit_at_once,
    )
    try:
        with connection as peer:
            outcome = run_learner(
                load_algorithm(spec.config),
                backend,
                LabPeer(peer, backend),
                sink,
                clock=MonotonicClock(),
                should_stop=stop.is_set,
            )
        note("learned", iterations=outcome.num_iterations, weights=backend.digest)
    finally:
        sink.close()


def main(path: str) -> int:
    """As `agentrl.cluster.roles.learner`, with the toy model."""
    setup_logging("INFO", name="learner-0")
    torch.set_num_threads(1)
    try:
        _train(read_spec(Path(path)))
    except AgentRLError as error:
        logger.error("learner-0 stopped: %s", error)
        return error.exit_code
    return 0
