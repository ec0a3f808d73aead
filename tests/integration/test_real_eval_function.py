"""`--eval-function-path` on the real stack: one function plays training and two evaluation sets.
Scores stand at the iteration of their weights, and an evaluation that fails stops nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.buffer import audit
from agentrl.config.presets import DEFAULT, PRESETS
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
MODEL = Path(PRESETS[DEFAULT].values["hf_checkpoint"])
ITERATIONS, FAILS_AT = 3, 2
#: Where it evaluates, it plays one set that flags name and one of its own.
FUNCTION = f"""
import asyncio
import json
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.utils.async_utils import run
from slime.utils.http_utils import post
from slime.utils.types import Sample


async def played(args, sample, **sampling):
    url = f"http://{{args.sglang_router_ip}}:{{args.sglang_router_port}}/generate"
    output = await post(url, {{
        "text": sample.prompt,
        "sampling_params": {{**args.sampling_params, **sampling}},
        "return_logprob": True,
        "logprob_start_len": 0,
    }})
    said = output["meta_info"]
    sample.tokens = [pair[1] for pair in said["input_token_logprobs"]]
    sample.append_response_tokens(
        args,
        tokens=[pair[1] for pair in said["output_token_logprobs"]],
        log_probs=[pair[0] for pair in said["output_token_logprobs"]],
        meta_info=said,
        text=output["text"],
    )
    sample.reward = float(len(sample.response) % 2)
    return sample


async def all_of(args, samples, **sampling):
    return list(await asyncio.gather(*(played(args, each, **sampling) for each in samples)))


def scored(samples):
    return {{
        "rewards": [sample.reward for sample in samples],
        "truncated": [sample.status == Sample.Status.TRUNCATED for sample in samples],
        "samples": samples,
    }}


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    if not evaluation:
        groups = data_source.get_samples(args.rollout_batch_size)
        return RolloutFnTrainOutput([run(all_of(args, group)) for group in groups])
    if rollout_id == {FAILS_AT}:
        raise ValueError("the set is not there")
    (named,) = args.eval_datasets
    rows = [json.loads(line) for line in open(named.path)]
    size = named.n_samples_per_eval_prompt
    asked = [Sample(prompt=row["input"]) for row in rows for _ in range(size)]
    own = [Sample(prompt="How much is two and two?")]
    sets = {{
        named.name: scored(run(all_of(args, asked, temperature=named.temperature))),
        "own": scored(run(all_of(args, own, max_new_tokens=2))),
    }}
    return RolloutFnEvalOutput(sets, metrics={{"eval/calls_at": rollout_id}})
"""

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def test_one_function_plays_training_and_evaluations(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    rows = [json.dumps({"input": f"Say {n}.", "label": str(n)}) for n in range(8)]
    for name in ("train", "held"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows[:3] if name == "held" else rows))
    command = [
        sys.executable, str(ROOT / "train_async.py"), "--hf-checkpoint", str(MODEL),
        "--prompt-data", "train.jsonl", "--rm-type", "f1", "--num-rollout", str(ITERATIONS),
        "--rollout-function-path", "mine.py", "--eval-function-path", "mine.py",
        "--rollout-batch-size", "2", "--n-samples-per-prompt", "2", "--num-steps-per-rollout", "1",
        "--rollout-max-response-len", "8", "--rollout-max-context-len", "256",
        "--num-agent-workers", "1", "--eval-prompt-data", "held", "held.jsonl",
        "--n-samples-per-eval-prompt", "2", "--eval-interval", "1", "--eval-mode", "pinned",
        "--run-dir", ".", "--run-id", "run",
    ]  # fmt: skip
    env = os.environ | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {
        (line["step"], name): score
        for line in lines
        for name, score in line.get("eval", {}).items()
    }
    steps = sorted(step for step, name in scores if name == "held")
    assert steps == [n for n in range(ITERATIONS + 1) if n != FAILS_AT]
    for step in steps:
        held, own = scores[step, "held"], scores[step, "own"]
        assert (held["n"], held["failed"], own["n"]) == (6, 0, 1)
        assert {"pass@2", "avg@2", "metric/truncated"} <= held.keys()
        assert "avg@1" not in own
        assert held["version_min"] == held["version_max"] == step
    failed = scores[FAILS_AT, "eval-function"]
    assert (failed["n"], failed["failed"]) == (0, 1)
    assert "ValueError: the set is not there" in said
    figures = {line["step"]: line["logged"] for line in lines if line.get("eval") == {}}
    assert figures == {step: {"eval/calls_at": step} for step in steps}
    report = audit(run)
    assert report.problems == ()
    assert report.fates == {Fate.TRAINED: ITERATIONS * 2}
