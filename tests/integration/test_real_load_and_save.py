"""`--load X --save X` on the real stack: one command line, given twice, is one run."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentrl.buffer.audit import audit
from agentrl.config.places import newest_kept
from agentrl.types import Fate
from tests.integration.test_real_programs import MODEL, train

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

SCRIPT = [
    "--hf-checkpoint", str(MODEL), "--ref-load", "Qwen3_torch_dist", "--load", "kept",
    "--save", "kept", "--save-interval", "1", "--env", "search-r1-local",
    "--rollout-batch-size", "2", "--n-samples-per-prompt", "4", "--rollout-max-response-len", "32",
    "--actor-num-gpus-per-node", "1", "--lr", "1e-4", "--lr-decay-style", "cosine",
    "--lr-decay-iters", "6", "--lr-warmup-iters", "1", "--use-kl-loss", "--kl-loss-coef", "0.00",
    "--kl-loss-type", "low_var_kl",
]  # fmt: skip


def played(folder: Path, num_rollout: int, *script: str) -> "subprocess.CompletedProcess[str]":
    done = train(folder, *script, "--num-rollout", str(num_rollout))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line).get("metrics", {}) for line in lines]
    return [values for values in found if "train/kl_loss" in values]


def test_a_script_that_loads_where_it_saves_is_one_run_however_often_it_is_given(
    tmp_path: Path,
) -> None:
    shutil.copytree(MODEL, tmp_path / "Qwen3_torch_dist")
    begun = played(tmp_path, 2, *SCRIPT)
    assert f"--load {tmp_path}/kept: there is no folder" in begun.stdout
    assert f"--ref-load {tmp_path}/Qwen3_torch_dist: the first weights are" in begun.stdout
    again = played(tmp_path, 4, *SCRIPT)
    assert f"continuing {tmp_path}/run" in again.stdout
    run = tmp_path / "run"
    assert json.loads((run / "summary.json").read_text())["steps"] == 4
    names = [path.name for path in sorted((tmp_path / "kept").iterdir())]
    assert names == [f"iteration_{number:07}" for number in (1, 2, 3, 4)]
    rates = [values["train/lr"] for values in metrics(run)]
    assert len(rates) == 4
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 4, "the schedule goes on"
    measured = [values["train/kl_loss"] for values in metrics(run)]
    assert measured[0] == pytest.approx(0, abs=1e-6)
    has_moved = [values["train/grad_norm"] > 0 for values in metrics(run)]
    for number, value in enumerate(measured[1:], start=1):
        assert not any(has_moved[:number]) or value > 0, "the reference stays where it was"
    report = audit(run)
    assert (report.problems, report.leases) == ((), 4)
    assert report.fates == {Fate.TRAINED: 8}, "each group once"

    shutil.rmtree(run)
    kept = newest_kept(tmp_path / "kept")
    assert kept is not None
    assert kept.run_path == str(run)
    alone = played(tmp_path, 1, *SCRIPT, "--run-id", "alone")
    assert re.search(
        r"those of iteration_0000004 of the run run, or .*; a new run begins", alone.stdout
    )
    assert (tmp_path / "kept" / "alone" / "iteration_0000001").is_dir()
    assert newest_kept(tmp_path / "kept" / "iteration_0000004") == kept
