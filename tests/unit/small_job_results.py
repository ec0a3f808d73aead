"""Results of a small job, as a run of it would have left them."""

import json
from typing import Any
from xml.etree import ElementTree

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


def shows_every_seed(page: Any, found: dict[str, Any], title: str) -> None:
    """A `SmallPage` tells of both seeds in their order, and its picture of every curve; `title` is
    that of the held-out score."""
    text = page.markdown(found)
    for seed in (2, 10):
        assert f"| {seed} | {title} | 0.400 | 0.600 |" in text
    assert text.index(f"| 2 | {title}") < text.index(f"| 10 | {title}")
    svg = ElementTree.fromstring(page.picture(found))
    texts = ["".join(text.itertext()) for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert all(title in texts for title in page.titles.values())
