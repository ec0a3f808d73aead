"""`--max-total-sampled-tokens` and frozen parameters on the real stack: a run ends when it has
sampled its tokens, goes on when it is given more, and what it froze has the bits that it had."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from agentrl.buffer import audit
from agentrl.buffer.ledger import LedgerReader
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.envs.search_r1.questions import eval_tasks
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
TOKENS = 1500

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def play(folder: Path, *flags: str) -> tuple[str, list[dict[str, float]]]:
    """Run `train_async.py` to its end; what it said, and the metrics of all iterations so far."""
    command = [sys.executable, str(ROOT / "train_async.py"), *flags]
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return done.stdout, [line["metrics"] for line in lines if "metrics" in line]


def counted(run: Path) -> int:
    with LedgerReader(run / "ledger.db") as ledger:
        return ledger.load().total_sampled_tokens


def test_a_run_ends_with_its_tokens_and_goes_on_with_more(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "one.jsonl").write_bytes(msgspec.json.encode(eval_tasks("heldout")[0].row))
    said, first = play(
        tmp_path, "--preset", DEFAULT, "--run-dir", ".", "--run-id", "run",
        "--rollout-batch-size", "4", "--n-samples-per-prompt", "4", "--num-agent-workers", "1",
        "--max-concurrent-episodes", "8", "--max-total-sampled-tokens", str(TOKENS),
        "--freeze-params-name-list", "embedding", "mlp", "--check-weight-update-equal",
        "--skip-eval-before-train", "--eval-prompt-data", "one", "one.jsonl", "--lr", "1e-3",
    )  # fmt: skip
    assert f"--max-total-sampled-tokens {TOKENS}" in said
    assert "parameters are trained, the others are frozen" in said
    report = audit(run)
    assert report.clean, report.problems
    assert report.fates[Fate.TRAINED] > 0
    assert counted(run) >= TOKENS
    assert first[-1]["buffer/total_sampled_tokens"] <= counted(run)

    _, both = play(tmp_path, "--resume", "run", "--max-total-sampled-tokens", str(2 * TOKENS))
    report = audit(run)
    assert report.clean, report.problems
    assert len(both) > len(first)
    assert counted(run) >= 2 * TOKENS
    assert both[len(first)]["buffer/total_sampled_tokens"] >= TOKENS

    before, after = (load_file(place / "model.safetensors") for place in (MODEL, run / "hf"))
    kept = {name for name in after if torch.equal(before[name], after[name])}
    assert kept == {name for name in after if "embed_tokens" in name or "mlp" in name or (
        "post_attention_layernorm" in name
    )}  # fmt: skip
