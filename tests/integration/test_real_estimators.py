"""Every estimator that ships, and distillation from a teacher, trains two iterations of two steps
on the real stack; a commit plays the slice of its day."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl.buffer import audit
from agentrl.config.fields import own_fields
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate
from tests.estimators import ESTIMATORS, flags_of
from tests.slices import of_the_day

ROOT = Path(__file__).parents[2]
ITERATIONS, GROUPS = 2, 6
#: Distillation on top of an estimator: from a teacher in the ranks of the learner.
DISTILLED = "grpo from a teacher"
#: Of these, what one day plays.
A_DAY = 1
MODEL = Path(str(PRESETS[DEFAULT].values["hf_checkpoint"]))

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def command_line(name: str, teacher: Path) -> list[str]:
    """The flags of the estimator as they are given; `teacher`: where the teacher is written."""
    if name == DISTILLED:
        write_teacher(teacher)
        flags = {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": str(teacher)}
    else:
        flags = flags_of(name)
    words = []
    for field, value in flags.items():
        flag = own_fields()[field]
        words += [flag.spelled(True)] if flag.kind == "bool" else [flag.flag, str(value)]
    return words


def write_teacher(folder: Path) -> None:
    """The shipped model, a little elsewhere."""
    shutil.copytree(MODEL, folder)
    (file,) = folder.glob("*.safetensors")
    noise = torch.Generator().manual_seed(0)
    moved = {
        name: tensor + 0.02 * tensor.std() * torch.randn(tensor.shape, generator=noise)
        if tensor.dim() > 1
        else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(moved, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", of_the_day([*ESTIMATORS, DISTILLED], A_DAY))
def test_an_estimator_trains_on_the_real_stack(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--preset", "search-r1-local",
        "--num-rollout", str(ITERATIONS), "--rollout-batch-size", str(GROUPS),
        "--n-samples-per-prompt", "8", "--num-steps-per-rollout", "2",
        *command_line(name, tmp_path / "teacher"),
        "--skip-eval-before-train", "--eval-prompt-data", "one", "one.jsonl",
        "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    report = audit(tmp_path / "run")
    assert report.problems == ()
    assert report.fates[Fate.TRAINED] == ITERATIONS * GROUPS
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    steps = [line["metrics"] for line in lines if "metrics" in line]
    norms = [step["train/grad_norm"] for step in steps if "train/grad_norm" in step]
    assert len(norms) == ITERATIONS
    assert all(map(math.isfinite, norms))
    assert max(norms) > 0
    away = [step["train/opd_reverse_kl"] for step in steps if "train/opd_reverse_kl" in step]
    assert len(away) == ITERATIONS * (name == DISTILLED)
    assert all(map(math.isfinite, away))
    assert not away or max(map(abs, away)) > 1e-4
