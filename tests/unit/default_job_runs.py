"""Run directories as the default job's experiment leaves them, small and written by hand."""

import json
from pathlib import Path
from typing import Any

#: When the evaluation before training ends; each run has its models after every second iteration.
START_S = 1000.0


def write_run(
    path: Path,
    *,
    iteration_s: float = 10.0,
    scores: tuple[float, ...] = (0.6, 0.8),
    sampled: float = 0.5,
    status: str = "complete",
) -> Path:
    """A run of two iterations for each of its scores, scored after every second."""
    num_steps = 2 * len(scores)
    lines: list[dict[str, Any]] = [{"step": 0, "eval": {"heldout": {}}, "time": START_S}]
    for step in range(1, num_steps + 1):
        # the learner has waited 40 s for its first batch while the model was evaluated
        lasted = iteration_s + (40 if step == 1 else 0)
        metrics = {"rollout/reward_mean": step / 10, "perf/iteration_s": lasted}
        now = START_S + step * iteration_s
        lines.append({"step": step, "metrics": metrics, "histograms": {}, "time": now})
    lines.append({"step": num_steps, "eval": {"heldout": {}}, "time": lines[-1]["time"] + 5})
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary: dict[str, Any] = {
        "run_id": path.name, "status": status, "error": None, "steps": num_steps, "wall_s": 1.0,
        "eval": {}, "fates": {}, "max_trained_age": 3, "learner_idle_share": 0.25,
        "push_ms_p50": None,
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    for at, greedy in enumerate(scores, start=1):
        (path / "models" / str(2 * at)).mkdir(parents=True)
        write_scored(path / "scores" / f"{2 * at}.json", greedy, sampled)
    return path


def write_scored(path: Path, greedy: float, sampled: float) -> None:
    """Rewards of 100 questions, of which the first are right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"greedy": _first(greedy), "sampled": _first(sampled)}
    path.write_text(json.dumps(found))


def _first(share: float) -> list[float]:
    return [1.0] * round(100 * share) + [0.0] * (100 - round(100 * share))


def write_experiment(folder: Path) -> Path:
    """Two seeds of async, two of sync that is half as fast, and one of another arm."""
    write_scored(folder / "before.json", 0.4, 0.2)
    for seed, sampled in ((0, 0.5), (1, 0.7)):
        write_run(folder / f"async-{seed}", iteration_s=8 + 2 * seed, sampled=sampled)
        write_run(folder / f"sync-{seed}", iteration_s=16 + 4 * seed)
    write_run(folder / "age-8-0", scores=(0.4, 0.4), sampled=0.2)
    return folder
