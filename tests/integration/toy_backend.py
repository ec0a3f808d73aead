"""A complete `TrainBackend` without a model: a bigram table under plain autograd, with collectives
between threads when there are several ranks.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.algorithms.scored_logits import Logits
from agentrl.learner.backend import StepResult
from agentrl.learner.manifest import FileFacts
from agentrl.learner.measures import Measures, joined, measured
from tests.collectives import Thread, Threads

VOCABULARY = 8


class ToyBackend(Thread):
    """A bigram table trained by SGD, and a critic: the value of each token that was read last."""

    collective_timeout_s = 600.0

    def __init__(self, group: Threads, rank: int, lr: float = 10.0) -> None:
        super().__init__(group, rank)
        self.table = torch.zeros(VOCABULARY, VOCABULARY, requires_grad=True)
        self.values = torch.zeros(VOCABULARY, requires_grad=True)
        self.num_passes = self.num_steps = 0
        self.not_finite_at: set[int] = set()
        self.on_save: Callable[[Path], None] = lambda _: None
        self._initial = self.table.detach().clone()
        self.is_renewed = False
        self._rates = {"policy": lr, "critic": 0.3}

    def _scores(self, table: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs_TV = torch.log_softmax(table[batch.tokens_T], dim=-1)
        entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
        return logprobs_TV.gather(1, batch.labels_T[:, None]).squeeze(1), entropy_T

    def _outputs(self, table: Tensor, batch: MicroBatch) -> Outputs:
        def logits() -> Logits:
            return Logits.of_one_rank(table[batch.tokens_T])

        return Outputs(*self._scores(table, batch), logits=logits)

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        self.num_passes += 1
        if model == "critic":
            return [self.values.detach()[batch.tokens_T] for batch in micro_batches]
        tables = {
            "reference": self._initial,
            "teacher": self._initial.T,
            "policy": self.table.detach(),
        }
        table = tables[model]
        return [self._scores(table, batch)[0] for batch in micro_batches]

    def step(
        self,
        model: str,
        micro_batches: Sequence[MicroBatch],
        loss_fn: LossFn,
        lr_scale: float = 1.0,
    ) -> StepResult:
        weights = {"policy": self.table, "critic": self.values}[model]
        gradient = torch.zeros_like(weights)
        reports: list[Measures] = []
        for batch in micro_batches:
            if model == "critic":
                out = Outputs.of_critic(weights[batch.tokens_T])
            else:
                out = self._outputs(weights, batch)
            loss, sums = loss_fn(batch, out)
            if self.num_steps in self.not_finite_at:
                loss = loss * math.nan
            gradient += torch.autograd.grad(loss, weights)[0]
            reports.append(measured(sums))
        self.num_steps += 1
        gathered = self.gather((gradient, reports))
        gradient = torch.stack([rank_gradient for rank_gradient, _ in gathered]).sum(0)
        total = joined(report for _, reports in gathered for report in reports)
        norm = float(gradient.norm())
        if math.isfinite(norm):
            with torch.no_grad():
                weights -= self._rates[model] * lr_scale * gradient
        return StepResult(not math.isfinite(norm), norm, self._rates[model], total)

    def renew(self, model: str) -> None:
        assert model == "reference"
        self._initial = self.table.detach().clone()
        self.is_renewed = True

    def hf_tensors(self) -> Iterator[tuple[str, Tensor]]:
        self.gather(None)
        yield "table", self.table.detach().clone()

    def save_hf(self, directory: Path) -> None:
        self.on_save(directory)

    def save_state(self, directory: Path) -> Mapping[str, FileFacts]:
        self.write_state(directory, self.state_files())
        self.gather(None)
        return {}

    def copy_state(self) -> "ToyCopy":
        return ToyCopy(self, self.state_files())

    def state_files(self) -> dict[str, bytes]:
        """What this rank writes, by file name."""
        if not self.is_source:
            return {}
        tables = {"table": self.table.detach(), "values": self.values.detach()}
        tables |= {"reference": self._initial} if self.is_renewed else {}
        return {name: table.numpy().tobytes() for name, table in tables.items()}

    def write_state(self, directory: Path, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            (directory / name).write_bytes(data)

    def load_state(self, directory: Path) -> None:
        for name, weights in (("table", self.table), ("values", self.values)):
            data = bytearray((directory / name).read_bytes())
            with torch.no_grad():
                weights.copy_(torch.frombuffer(data, dtype=weights.dtype).view_as(weights))
        if (directory / "reference").exists():
            data = bytearray((directory / "reference").read_bytes())
            self._initial = torch.frombuffer(data, dtype=self.table.dtype).view_as(self.table)
            self.is_renewed = True

    def close(self) -> None: ...


class ToyCopy:
    """What a backend would have saved when this was made."""

    def __init__(self, backend: ToyBackend, files: Mapping[str, bytes]) -> None:
        self._backend = backend
        self._files = files

    def write(self, directory: Path) -> Any:
        self._backend.write_state(directory, self._files)
        return sorted(self._files)

    def join(self, directory: Path, parts: list[Any]) -> Mapping[str, FileFacts]:
        written = [name for part in parts for name in part]
        assert sorted(path.name for path in directory.iterdir()) == sorted(written)
        return {}
