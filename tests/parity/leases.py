"""What a rank makes of two leases by the algorithm of its settings: losses, gradient norms, weights
and values. Any number of ranks can play it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from agentrl.algorithms.load import load_algorithm
from agentrl.config.run import RunConfig
from agentrl.learner.backend import StepResult, TrainBackend
from agentrl.learner.iteration import train_lease
from agentrl.lineage import Lineage
from agentrl.types import VersionRow
from tests.parity.golden import LEASE, Batch
from tests.parity.jobs import packed

__all__ = ["SEEDS", "play"]

#: One lease each; what an algorithm remembers of the first acts on the second.
SEEDS = (1, 2)


def play(backend: TrainBackend, cfg: RunConfig, target: Path) -> None:
    """Train both leases; write to `target`-RANK.* the last weights and all that was reported."""
    algorithm = load_algorithm(cfg)
    versions = range(LEASE + len(SEEDS))
    lineage = Lineage([VersionRow(v, parent=v - 1 if v else None, iteration=v) for v in versions])
    seen: list[dict[str, Any]] = []
    for number, seed in enumerate(SEEDS, LEASE):
        batch = Batch(seed)
        header = replace(batch.header, number=number)
        result = train_lease(header, algorithm, backend, lineage, batch.fetch)
        steps = {name: list(map(_told, each)) for name, each in result.steps.items()}
        seen.append({"steps": steps, "counts": asdict(result.counts)})
    weights = {name: tensor.clone() for name, tensor in backend.hf_tensors()}
    if "critic" in algorithm.needs.models:
        weights["values"] = backend.run("critic", [packed([30, 7, 12], 1)])[0]
    rank = torch.distributed.get_rank()
    save_file(weights, f"{target}-{rank}.weights")
    Path(f"{target}-{rank}.json").write_text(json.dumps(seen))


def _told(step: StepResult) -> dict[str, Any]:
    facts = {"skipped": [step.skipped], "grad_norm": [step.grad_norm], "lr": [step.lr]}
    return facts | {name: list(measure) for name, measure in step.metrics.items()}
