"""A lesson: a run of the project's own SFT path over demonstrations in a file.

    model + demonstrations (JSONL)  ->  train_async.py --loss-type sft_loss  ->  hf

All models that the jobs of this repository start from are made of such lessons.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from scripts.default_job.places import ROOT

__all__ = ["STEPS_PER_ROLLOUT", "Course", "parser", "save_recipe", "teach", "write_rows"]

#: Optimizer steps of one iteration of the learner: what one rollout batch is shared by.
STEPS_PER_ROLLOUT = 16


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """How demonstrations are learnt: `steps` optimizer steps of `batch_size` of them each."""

    steps: int
    batch_size: int
    lr: float
    seed: int
    weight_decay: float = 0.1

    @property
    def num_demonstrations(self) -> int:
        """How many are learnt from, each once."""
        return self.steps * self.batch_size


def parser(about: str) -> argparse.ArgumentParser:
    """What every program asks for that makes a model: where, on how many ranks, by which seed."""
    made = argparse.ArgumentParser(description=about)
    made.add_argument("--output", type=Path, required=True)
    made.add_argument("--ranks", type=int, default=1, help="learner ranks, one a core")
    made.add_argument("--batch-size", type=int, default=16)
    made.add_argument("--seed", type=int, default=0)
    return made


def write_rows(path: Path, demonstrations: Iterable[list[dict[str, Any]]]) -> None:
    """The rows of `sft_loss`, in the order in which they are learnt."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for messages in demonstrations:
            file.write(msgspec.json.encode({"messages": messages}) + b"\n")


def teach(
    model: Path, data: Path, course: Course, ranks: int, more: Mapping[str, object] | None = None
) -> Path:
    """Learn from the rows of `data`; `more`: flags that win over those of the course.

    Returns where the model lands: `hf` beside `data`, unless `more` says otherwise.
    """
    saved = data.parent / "hf"
    flags: dict[str, object] = {
        "loss-type": "sft_loss",
        "prompt-data": data,
        "input-key": "messages",
        "hf-checkpoint": model,
        "save-hf": saved,
        "run-dir": data.parent / "runs",
        "rollout-batch-size": course.batch_size * STEPS_PER_ROLLOUT,
        "num-steps-per-rollout": STEPS_PER_ROLLOUT,
        "num-rollout": course.steps // STEPS_PER_ROLLOUT,
        "rollout-max-context-len": 512,
        "lr": course.lr,
        "min-lr": course.lr / 20,
        "lr-decay-style": "cosine",
        "lr-warmup-iters": 50,
        "weight-decay": course.weight_decay,
        "adam-beta2": 0.95,
        "actor-num-gpus-per-node": ranks,
        "seed": course.seed,
        **(more or {}),
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, str(ROOT / "train_async.py"), *words, "--calculate-per-token-loss"]
    subprocess.run(command, check=True)
    return saved


def save_recipe(model: Path, recipe: msgspec.Struct, ranks: int, **more: object) -> None:
    """Write beside the weights what made them (`training.json`)."""
    record = {"recipe": recipe, "learner_ranks": ranks, **more, "torch": str(torch.__version__)}
    (model / "training.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))
