"""Results of a small job, as a run of it would have left them."""

import json
from typing import Any

import msgspec

from benchmarks import Row
from benchmarks.small_job import SmallJob

#: Held-out scores before and after.
BEFORE, AFTER = 0.4, 0.6


def metrics(job: SmallJob, rewards: list[float]) -> str:
    """A `metrics.jsonl` with an evaluation before and after; all that is sampled is `rewards`."""
    lines: list[dict[str, Any]] = [scored(0, BEFORE)]
    lines += [
        {"step": step, "metrics": dict.fromkeys(job.sampled.values(), reward)}
        for step, reward in enumerate(rewards, start=1)
    ]
    lines.append(scored(len(rewards), AFTER))
    return "".join(json.dumps(line) + "\n" for line in lines)


def scored(step: int, score: float) -> dict[str, Any]:
    """A line that tells of an evaluation."""
    return {"step": step, "eval": {"heldout": {"n": 256, "score": score}}}


def result(job: SmallJob, *more: Row) -> dict[str, Any]:
    """What the benchmark reports of seeds 2 and 10."""
    rows = [row for seed in (2, 10) for row in job.rows_of(metrics(job, [0.3] * 12), seed)]
    made = [msgspec.structs.asdict(row) for row in [*more, *rows]]
    return {"name": job.name, "machine": "a machine", "commit": "0123456789ab", "rows": made}
