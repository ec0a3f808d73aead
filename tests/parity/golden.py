"""Numbers of the learner that must not change by themselves: from a lease to the gradient.

Thirteen loss configurations, five seeds each, on ragged leases of several turns, versions and
segments, with failed-out episodes and a flat group. What is kept of each: a digest of every column
of every step, and its loss, sums and gradient norm as exact hexadecimal
floats.

    python -m tests.parity.golden            compare with golden.json, bit for bit
    python -m tests.parity.golden --write    replace golden.json (say why in the CHANGELOG)

Columns are equal on every machine. Loss and gradient are sums of floats, whose last bits depend on
the processor: the test allows for that, the command does not. To compare two commits bit for bit,
write on one and compare on the other, on one machine.
"""

import hashlib
import json
import random
import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.algorithms.load import load_algorithm
from agentrl.algorithms.rows import LossFn, MicroBatch, Outputs
from agentrl.columns import CACHE_VERSIONS, COLUMNS, TEACHER_LOGPROBS, Column
from agentrl.config.run import RunConfig
from agentrl.learner.backend import StepResult
from agentrl.learner.iteration import train_lease
from agentrl.learner.measures import Measures, joined, measured
from agentrl.learner.rows import Trajectory, decode_trajectory
from agentrl.lineage import Lineage
from agentrl.types import (
    EpisodeId,
    GroupRows,
    LeaseHeader,
    PayloadRef,
    SpanKind,
    StopReason,
    TrajectoryMeta,
    TrajectoryRow,
    VersionRow,
)

__all__ = ["CASES", "FILE", "SEEDS", "Numbers", "numbers_of"]
from tests.collectives import OneRank

FILE = Path(__file__).with_name("golden.json")
SEEDS = range(5)
VOCABULARY = 32
#: So large that the second step leaves the clip range.
RATE = 60.0
#: So large that values leave theirs.
VALUE_RATE = 40.0
#: Iterations before the lease, each with a version of its own.
LEASE = 5

_KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "per_token": {"calculate_per_token_loss": True},
    "no_tis": {"use_tis": False},
    "tis_band": {"tis_clip_low": 0.5, "tis_clip": 1.5},
    "clip_higher": {"eps_clip": 0.1, "eps_clip_high": 0.4},
    "dual_clip": {"eps_clip_c": 1.2},
    "dr_grpo_per_token": {
        "disable_grpo_std_normalization": True,
        "calculate_per_token_loss": True,
    },
    "entropy": {"entropy_coef": 0.01},
    "kl_k1": {**_KL, "kl_loss_type": "k1"},
    "kl_k2": {**_KL, "kl_loss_type": "k2"},
    "kl_low_var": {**_KL, "kl_loss_type": "low_var_kl"},
    "stale_masks": {"max_staleness": 1},
    "off_policy_turns": {"mask_offpolicy_in_partial_rollout": True},
}

Numbers = dict[str, Any]
_PASSES = frozenset({"prox", "reference"})
#: Totals that are kept, and the metrics that have them.
_KEPT = {
    **{name: name for name in ("loss", "pg_loss", "kl_loss", "entropy")},
    "clipped": "pg_clipfrac",
    "truncated": "tis_clipfrac",
}


def lineage() -> Lineage:
    """One version an iteration."""
    rows = [VersionRow(v, parent=v - 1 if v else None, iteration=v) for v in range(LEASE)]
    return Lineage(rows)


class Batch:
    """A lease of ragged groups and the columns behind it, made from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rows: dict[int, Trajectory] = {}
        groups = [self._group(mint) for mint in range(1, 7)]
        self.header = LeaseHeader(number=LEASE, groups=groups)

    def fetch(self, rows: Sequence[TrajectoryRow], optional: Sequence[Column]) -> list[Trajectory]:
        """The trajectories of `rows`. Of optional columns they have the teacher's, and the caches
        that turns began with: of the versions that sampled them."""
        found = [self.rows[row.payload.offset] for row in rows]
        if not optional:
            return found
        return [
            replace(
                one,
                optional={
                    TEACHER_LOGPROBS: np.full(len(one.tokens_L), -1.5, "<f4"),
                    CACHE_VERSIONS: one.versions_L,
                },
            )
            for one in found
        ]

    def _group(self, mint: int) -> GroupRows:
        done = self._random.randint(2, 4)  # of four: the others failed
        episodes = [EpisodeId(f"g{mint}", index) for index in range(done)]
        flat = mint == 3
        rewards = [0.5 if flat else round(self._random.uniform(-1, 2), 3) for _ in episodes]
        pairs = zip(episodes, rewards, strict=True)
        rows = [row for episode, reward in pairs for row in self._episode(episode, reward)]
        metrics = [{"tool_calls": float(index)} for index in range(done)]
        ends = [StopReason.CONTEXT_LIMIT, *[StopReason.TERMINATED] * (done - 1)]
        return GroupRows(f"g{mint}", mint, f"t{mint}", episodes, rewards, metrics, rows, ends)

    def _episode(self, episode: EpisodeId, reward: float) -> list[TrajectoryRow]:
        return [
            self._trajectory(episode, reward, segment)
            for segment in range(self._random.choice([1, 1, 2]))
        ]

    def _trajectory(self, episode: EpisodeId, reward: float, segment: int) -> TrajectoryRow:
        columns = self._columns()
        sampled = [version for version in columns["versions"] if version >= 0]
        meta = TrajectoryMeta(
            num_tokens=len(columns["tokens"]),
            num_sampled=len(sampled),
            num_turns=len(set(columns["turns"]) - {-1}),
            reward=reward,
            versions=[(version, sampled.count(version)) for version in sorted(set(sampled))],
            segment=segment,
        )
        place = len(self.rows)
        row = TrajectoryRow(episode, meta, PayloadRef("golden", 1, place, 0, 0))
        data = [np.array(columns[name], dtype=c.dtype).tobytes() for name, c in COLUMNS.items()]
        self.rows[place] = decode_trajectory(row, data)
        return row

    def _columns(self) -> dict[str, list[Any]]:
        """A prompt, then turns of sampled tokens, each answered by what nobody trains."""
        columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._extend(columns, SpanKind.CONTROL, self._random.randint(2, 9), turn=-1)
        version = self._random.randint(0, LEASE - 1)
        for turn in range(self._random.randint(1, 3)):
            newest = min(LEASE - 1, version + self._random.randint(0, 1))
            for part in (version, newest):
                count = self._random.randint(1, 7)
                self._extend(columns, SpanKind.SAMPLED, count, turn=turn, version=part)
            version = newest
            self._extend(columns, SpanKind.UNTRUSTED, self._random.randint(0, 5), turn=turn)
        return columns

    def _extend(
        self,
        columns: dict[str, list[Any]],
        kind: SpanKind,
        count: int,
        *,
        turn: int,
        version: int = -1,
    ) -> None:
        for _ in range(count):
            is_sampled = kind is SpanKind.SAMPLED
            columns["tokens"].append(self._random.randrange(VOCABULARY))
            columns["kinds"].append(int(kind))
            columns["logprobs"].append(-self._random.uniform(0.5, 6) if is_sampled else 0.0)
            columns["versions"].append(version)
            columns["turns"].append(turn)


class TableBackend(OneRank):
    """One rank whose model is a table of next-token logits, trained by plain gradient descent; it
    notes what each step was given and what came of it."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCABULARY, VOCABULARY, generator=generator).requires_grad_()
        self._reference = self.table.detach() + 0.1 * torch.randn(
            VOCABULARY, VOCABULARY, generator=generator
        )
        self.values = torch.randn(VOCABULARY, generator=generator).requires_grad_()
        self.steps: list[Numbers] = []

    def run(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Tensor]:
        if model == "critic":
            return [self.values.detach()[batch.tokens_T] for batch in micro_batches]
        table = {
            "reference": self._reference,
            "teacher": self._reference.T,
            "policy": self.table.detach(),
        }[model]
        return [_scores(table, batch)[0] for batch in micro_batches]

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
            is_critic = model == "critic"
            values_T = self.values[batch.tokens_T]
            out = Outputs.of_critic(values_T) if is_critic else Outputs(*_scores(weights, batch))
            loss, found = loss_fn(batch, out)
            gradient += torch.autograd.grad(loss, weights)[0]
            reports.append(measured(found))
        measures = joined(reports)
        norm = float(gradient.norm())
        self.steps.append(
            {
                "columns": _digests(micro_batches),
                "grad_norm": norm.hex(),
                **{k: measures[name][0].hex() for k, name in _KEPT.items() if name in measures},
            }
        )
        with torch.no_grad():
            rate = (RATE if model == "policy" else VALUE_RATE) * lr_scale
            weights -= rate * gradient
        return StepResult(skipped=False, grad_norm=norm, lr=rate, metrics=measures)


def numbers_of(case: str, seed: int) -> Numbers:
    """What is kept of one configuration and seed: two steps of one lease."""
    flags = {"max_staleness": 8, **CASES[case]}
    cfg = RunConfig(num_steps_per_rollout=2, max_tokens_per_gpu=160, **flags)
    batch, backend = Batch(seed), TableBackend(seed)
    with torch.random.fork_rng():
        result = train_lease(batch.header, load_algorithm(cfg), backend, lineage(), batch.fetch)
    return {
        "steps": backend.steps,
        "counts": list(result.counts.values()),
        "max_trained_age": result.max_trained_age,
        "table": hashlib.sha256(array("f", backend.table.detach().flatten().tolist())).hexdigest(),
    }


def _scores(table: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    logprobs_TV = torch.log_softmax(table[batch.tokens_T], dim=-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprobs_TV.gather(1, batch.labels_T[:, None]).squeeze(1), entropy_T


def _digests(micro_batches: Sequence[MicroBatch]) -> dict[str, str]:
    """By column, over all micro-batches of a step; what a pass of the model made is left out."""
    found: dict[str, Any] = {}
    for batch in micro_batches:
        columns = {name: batch.columns[name] for name in batch.columns if name not in _PASSES}
        columns |= {"tokens": batch.tokens_T, "labels": batch.labels_T, "starts": batch.cu_seqlens}
        for name, column in columns.items():
            data = column.numpy()
            digest = found.setdefault(name, hashlib.sha256())
            digest.update(f"{data.dtype.str}{len(data)} ".encode() + data.tobytes())
    return {name: digest.hexdigest()[:16] for name, digest in sorted(found.items())}


def main() -> int:
    torch.set_num_threads(1)
    found = {case: [numbers_of(case, seed) for seed in SEEDS] for case in CASES}
    if "--write" in sys.argv:
        lines = [f"{json.dumps(case)}: {json.dumps(found[case])}" for case in CASES]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return 0
    kept = json.loads(FILE.read_text())
    every = [(case, seed) for case in CASES for seed in SEEDS]
    changed = [f"{case} {seed}" for case, seed in every if found[case][seed] != kept[case][seed]]
    sys.stdout.write("\n  ".join([f"{len(changed)} of {len(every)} differ", *changed]) + "\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
