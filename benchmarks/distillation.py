"""`python -m benchmarks.distillation TEACHER PUPIL`: a policy learns from a served teacher alone.

TEACHER and PUPIL are directories of runs: the default job, and the same with

    --use-opd --opd-type sglang --rm-url URL --custom-reward-post-process-path nothing

where an SGLang server at URL has the final weights of the first. Their numbers go to
`results/distillation.json`, and from there into the page.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import ROOT, Row, report
from scripts.pages import rows

__all__ = ["PAGE", "page"]

PAGE = ROOT / "docs" / "results" / "distillation.md"
#: Iterations that are averaged in a line of the table.
_EACH = 5
COMMAND = (
    "train_async.py --save-hf taught; an SGLang server of taught at URL; train_async.py --use-opd "
    "--opd-type sglang --rm-url URL --custom-reward-post-process-path nothing"
)


def _scores(run: Path) -> list[float]:
    summary = json.loads((run / "summary.json").read_text())
    return [each["score"] for each in summary["eval"]["heldout"]]


def _rows(teacher: Path, pupil: Path) -> list[Row]:
    before, after = _scores(pupil)
    rows = [
        Row("teacher, held out", _scores(teacher)[-1], "share right"),
        Row("before, held out", before, "share right"),
        Row("after, held out", after, "share right", "teacher, held out"),
    ]
    lines = map(json.loads, (pupil / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "metrics" in line]
    for begin in range(0, len(steps), _EACH):
        part = steps[begin : begin + _EACH]
        for name, unit in (
            ("train/opd_reverse_kl", "nats"),
            ("rollout/reward_mean", "share right"),
        ):
            mean = sum(step[name] for step in part) / len(part)
            rows.append(Row(f"{name}, iterations {begin + 1} to {begin + len(part)}", mean, unit))
    return rows


def page(result: dict[str, Any]) -> str:
    """The page that these numbers make."""
    values = {row["metric"]: row["value"] for row in result["rows"]}
    head = (
        "iterations",
        "reverse KL to the teacher, nats a token",
        "sampled reward, which none sees",
    )
    lines = []
    for name, kl in values.items():
        if name.startswith("train/opd_reverse_kl, iterations "):
            when = name.partition("iterations ")[2]
            reward = values[f"rollout/reward_mean, iterations {when}"]
            lines.append((when, f"{kl:.3f}", f"{reward:.2f}"))
    teacher, before, after = (
        f"{100 * values[f'{who}, held out']:.1f} %" for who in ("teacher", "before", "after")
    )
    table = "\n".join(rows(head, lines))
    return f"""# Distillation from a served teacher

The default job's model learns from a teacher alone, without rewards
([how](../objectives.md#a-teacher)): the teacher is the same model after the default job's
{_EACH * len(lines)} iterations, on an SGLang server. Held-out questions that are answered rightly,
greedy: the teacher {teacher}; the policy {before} before and {after} after. One seed each.

{table}

Made by `python -m benchmarks.distillation` from two runs:
`{result["command"]}`.
Machine: {result["machine"]}, shared with other work. Commit: {result["commit"]}.
"""


if __name__ == "__main__":
    PAGE.write_text(page(report("distillation", _rows(*map(Path, sys.argv[1:])), COMMAND)))
