"""What the learner's loop asks of a training backend, and the data that passes between them.

A backend owns the weights, the optimizer and the collectives of one rank; the loop owns batches,
advantages and the loss. Neither looks inside the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch
from agentrl.columns import Column
from agentrl.learner.manifest import FileFacts
from agentrl.learner.measures import Measures

__all__ = ["Models", "StepResult", "TrainBackend"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One optimizer step.

    skipped: the gradient norm or the loss was not finite, or no token of any rank was trained;
    weights and optimizer state untouched.
    grad_norm: before clipping. metrics: of all micro-batches and data-parallel ranks.
    """

    skipped: bool
    grad_norm: float
    lr: float
    metrics: Measures


class Models(Protocol):
    """What an iteration needs of a backend. Every method is collective: all ranks call it, in the
    same order. Data-parallel ranks may hold different numbers of micro-batches, also none.

    data_parallel_rank, data_parallel_size: which share of the rows this rank trains. columns: what
    it wants of trajectories, beside what an algorithm needs. is_source: the rank that talks to the
    buffer and publishes (global rank 0).
    """

    is_source: bool
    data_parallel_rank: int
    data_parallel_size: int
    columns: tuple[Column, ...]

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        """What `model` makes of them, forward only: one detached float32 [T] for each micro-batch,
        the same on every rank of the model-parallel group. `policy`, `teacher` and `reference`
        (`--ref-load`, or what `renew` gave it) give log-probabilities of the labels, `critic` gives
        values."""
        ...

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        """Exactly one optimizer step of `model`: `policy` or `critic`. The gradient is the sum over
        ranks and micro-batches of d loss; the loss already carries its denominator, so nothing is
        averaged here. `lr_scale`: what its learning rate is multiplied with, in this step alone."""
        ...

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sums over data-parallel ranks, in float64."""
        ...

    def all_gather(self, value: Any) -> list[Any]:
        """`value`, which msgpack can carry, of every rank (not of data-parallel ones alone), in
        the order of ranks."""
        ...

    def broadcast_bytes(self, data: bytes | None) -> bytes:
        """`data` of the source rank, on every rank."""
        ...


class TrainBackend(Models, Protocol):
    """One rank's share of the model. Every method but `close` is collective.

    collective_timeout_s: how long the ranks wait in a collective for one that does not come.
    """

    collective_timeout_s: float

    def renew(self, model: str) -> None:
        """Give `model`, one beside the policy, the weights of the policy. Where the run does so
        (`--ref-update-interval`), they are part of its state."""
        ...

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Current weights by Hugging Face name, full tensors, on every rank. All ranks must
        exhaust it. A tied `lm_head` is left out."""
        ...

    def save_hf(self, directory: Path) -> None:
        """Write a complete Hugging Face model directory, atomically: weights now, and the source
        checkpoint's configuration, tokenizer and generation files."""
        ...

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        """Write into `directory`, which is there and empty, all that the next step depends on:
        weights, optimizer, position in the schedule, random generators. Durable on return. What
        fails on one rank is raised on all, InfrastructureError for a disk. On several nodes
        `directory` must lie on a file system that all of them share. Returns what is known of
        large files, by their path in it: nobody need read them again."""
        ...

    def load_state(self, directory: Path) -> None:
        """Take over what `save_state` wrote: the next step is then bit-equal to the one of the
        process that saved. Another layout of ranks gets the same weights and moments, shared out
        anew, and keeps its own random generators. ConfigError, on all ranks and with nothing
        changed, when the model is another one. The reference stays `--ref-load`, but for one that
        the same run has renewed."""
        ...

    def close(self) -> None:
        """Leave the process groups. The backend is unusable afterwards."""
        ...
