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
    scores: tuple[float, ...] = (0.4, 0.6, 0.8),
    own: tuple[float, float] | None = (0.38, 0.81),
    n: int = 100,
    seed: int = 1,
    status: str = "complete",
    is_rewarded: bool = True,
    **config: Any,
) -> Path:
    """A run of two iterations for each score after the first, scored after every second.

    `own`: what it evaluated itself before and after; None for a run that is not evaluated.
    """
    num_steps = 2 * (len(scores) - 1)
    lines = [] if own is None else [evaluation(0, START_S, own[0], n)]
    for step in range(1, num_steps + 1):
        # the learner has waited 40 s for its first batch while the model was evaluated
        waited = 40 if step == 1 and own is not None else 0
        metrics = {"rollout/reward_mean": step / 10} if is_rewarded else {}
        metrics["perf/iteration_s"] = iteration_s + waited
        now = START_S + step * iteration_s
        lines.append({"step": step, "metrics": metrics, "histograms": {}, "time": now})
    if own is not None:
        lines.append(evaluation(num_steps, START_S + num_steps * iteration_s + 5, own[1], n))
    path.mkdir(parents=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary: dict[str, Any] = {
        "run_id": path.name, "status": status, "error": None, "steps": num_steps, "wall_s": 1.0,
        "eval": {}, "fates": {}, "max_trained_age": 3, "learner_idle_share": 0.25,
        "push_ms_p50": None,
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    settings = {"seed": seed, "run_dir": f'"{path}"', "save_hf": f'"{path}"', **config}
    (path / "config.toml").write_text("".join(f"{k} = {v}\n" for k, v in settings.items()))
    write_curve(path, {2 * at: score for at, score in enumerate(scores)}, n)
    (path / "models" / str(num_steps)).mkdir(parents=True)
    return path


def write_curve(path: Path, scores: dict[int, float], n: int) -> None:
    """A curve in which the first questions are the right ones."""
    rewards = {
        step: [1.0] * round(n * s) + [0.0] * (n - round(n * s)) for step, s in scores.items()
    }
    curve = {"questions": "heldout", "without_search": False, "rewards": rewards}
    (path / "curve.json").write_text(json.dumps(curve))


def evaluation(step: int, time: float, score: float, n: int) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    figures = {"n": n, "failed": 0, "score": score, "version_min": step, "version_max": step}
    return {"step": step, "eval": {"heldout": figures}, "time": time}


def write_scores(path: Path, greedy: float, sampled: float) -> None:
    """What `evaluate.py --json` writes, as far as it is read."""
    rows = [
        {"questions": questions, "temperature": t, "episodes": 100, "exact_match": s, "searched": 1}
        for questions, t, s in (
            ("heldout", 0.0, greedy),
            ("heldout", 1.0, sampled),
            ("heldout forced", 0.0, greedy),
        )
    ]
    path.mkdir(parents=True, exist_ok=True)
    (path / "scores.json").write_text(json.dumps({"scores": rows, "groups_with_signal": None}))


def write_experiment(folder: Path) -> Path:
    """Two seeds of async, two of sync that is half as fast, one arm without its tool, and a control
    that ends after 32 s; all of one commit but a scoring."""
    for seed in (0, 1):
        write_run(folder / f"async-{seed}", iteration_s=8 + 2 * seed, seed=seed)
        write_run(folder / f"sync-{seed}", iteration_s=16 + 4 * seed, seed=seed, lr=0.5)
    write_run(folder / "no-search-0", scores=(0.1, 0.1, 0.1), seed=0)
    write_run(
        folder / "more-sft-0",
        iteration_s=8,
        scores=(0.4, 0.8, 0.9),
        own=None,
        is_rewarded=False,
        prompt_data='"demonstrations.jsonl"',
    )
    write_scores(folder / "before", 0.4, 0.2)
    for name, sampled in (("async-0", 0.5), ("async-1", 0.7), ("sync-0", 0.5), ("sync-1", 0.5)):
        write_scores(folder / name, 0.8, sampled)
    write_scores(folder / "more-sft-0", 0.9, 0.8)
    (folder / "measured").mkdir()
    for path in [folder / "before", *folder.glob("*-[0-9]")]:
        part = {"machine": "a machine", "commit": "c0ffee", "began": "2026-01-02T03:04:05+00:00"}
        late = part | {"commit": "decade"} if path.name == "sync-1" else part
        parts = {"curve": late} if path.name == "before" else {"trained": part, "curve": late}
        (folder / "measured" / f"{path.name}.json").write_text(json.dumps(parts))
    return folder
