"""Short runs of `train_async.py` as a user starts it: the README's Env, and what goes wrong."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import agentrl.envs.search_r1
from agentrl.buffer.audit import audit
from agentrl.errors import DataError, EnvironmentSetupError
from agentrl.serving.launch import engine_command
from agentrl.types import Fate

ROOT = Path(__file__).parents[2]
MODEL = Path(agentrl.envs.search_r1.__file__).parent / "model"

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]


def readme_block(language: str, containing: str) -> str:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return str(block)


def train(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    place = ["--async-buffer-size", "4", "--run-dir", str(folder), "--run-id", "run"]
    return started(folder, *place, *flags)


def started(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "train_async.py"), *flags]
    env = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=1800
    )


def small(*flags: str) -> list[str]:
    return [
        "--hf-checkpoint", str(MODEL), "--rollout-batch-size", "2", "--n-samples-per-prompt", "4",
        "--rollout-max-response-len", "32", "--actor-num-gpus-per-node", "1", *flags,
    ]  # fmt: skip


def test_the_readmes_env_is_twenty_lines_and_trains(tmp_path: Path) -> None:
    source = readme_block("python", "class Origins(Env)")
    lines = [line for line in source.splitlines() if line.strip()]
    assert len(lines) <= 20
    (tmp_path / "origins.py").write_text(source)
    shell = readme_block("bash", "origins.py:Origins")
    data, command = shell.split("python train_async.py", 1)
    data = data.removeprefix("source .venv/bin/activate\n")
    subprocess.run(["bash", "-c", data], cwd=tmp_path, check=True)
    flags = command.replace("\\\n", " ").split()
    flags[flags.index("--hf-checkpoint") + 1] = str(MODEL)
    flags[flags.index("--num-rollout") + 1] = "3"
    done = train(tmp_path, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("complete", 3)
    assert audit(tmp_path / "run").fates == {Fate.TRAINED: 12}


def test_dialogues_are_imitated_without_engines(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Where does Luna live?"},
        {"role": "assistant", "content": "<answer> Spain </answer>"},
    ]
    with (tmp_path / "dialogues.jsonl").open("w") as file:
        file.writelines(json.dumps({"messages": turns}) + "\n" for _ in range(8))
    done = train(
        tmp_path, "--loss-type", "sft_loss", "--prompt-data", "dialogues.jsonl",
        "--input-key", "messages", "--hf-checkpoint", str(MODEL), "--num-rollout", "4",
        "--rollout-batch-size", "8", "--num-steps-per-rollout", "2", "--lr", "1e-3",
        "--actor-num-gpus-per-node", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["metrics"]["train/nll"] for line in lines]
    assert losses[-1] < losses[0] / 2
    assert (tmp_path / "run" / "hf" / "model.safetensors").is_file()
    assert sorted(path.stem for path in (tmp_path / "run" / "logs").iterdir()) == [
        "buffer", "driver", "learner-0", "worker-0",
    ]  # fmt: skip
    report = audit(tmp_path / "run")
    assert (report.problems, report.fates) == ((), {Fate.TRAINED: 32})


def test_a_hook_that_hangs_ends_the_run_by_name_and_the_run_goes_on(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}]
    with (tmp_path / "dialogues.jsonl").open("w") as file:
        file.writelines(json.dumps({"messages": turns}) + "\n" for _ in range(6))
    (tmp_path / "hangs.py").write_text(
        "import os, time\n"
        "def before(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):\n"
        f"    if rollout_id == 2 and not os.path.exists('{tmp_path}/mended'):\n"
        "        time.sleep(3600)\n"
    )
    flags = [
        "--loss-type", "sft_loss", "--prompt-data", "dialogues.jsonl", "--input-key", "messages",
        "--hf-checkpoint", str(MODEL), "--num-rollout", "3", "--rollout-batch-size", "2",
        "--actor-num-gpus-per-node", "1", "--save-interval", "1", "--hook-timeout-s", "20",
        "--custom-megatron-before-train-step-hook-path", f"{tmp_path}/hangs.py:before",
    ]  # fmt: skip
    done = train(tmp_path, *flags)
    assert done.returncode == DataError.exit_code, done.stdout + done.stderr
    assert "/hangs.py:before has not returned within 20 s (--hook-timeout-s)" in done.stderr
    assert "hangs.py:4: the run ends here" in done.stderr
    (tmp_path / "mended").touch()
    done = started(tmp_path, "--resume", str(tmp_path / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    report = audit(tmp_path / "run")
    assert (report.problems, report.fates) == ((), {Fate.TRAINED: 6})


def test_an_env_that_always_raises_ends_the_run_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from agentrl import Env, Message\n"
        "class Broken(Env):\n"
        "    async def reset(self, *, seed, task):\n"
        "        return [Message.user('hello')]\n"
        "    async def score(self, text):\n"
        "        raise KeyError('no gold answer')\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"input": "x"}\n')
    flags = small("--env", "broken.py:Broken", "--prompt-data", "tasks.jsonl")
    done = train(tmp_path, *flags, "--num-rollout", "50")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "env_error" in done.stderr
    assert "no gold answer" in done.stderr
    report = audit(tmp_path / "run")
    assert report.problems == ()
    assert report.fates[Fate.ENV_ERROR] >= 4


def test_a_malformed_row_ends_the_run_naming_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"input": "a", "answer": "b"}\n{"input": oops}\n')
    flags = small("--env", "single-turn", "--label-key", "answer", "--prompt-data", "tasks.jsonl")
    done = train(tmp_path, *flags, "--num-rollout", "2")
    assert done.returncode == 65, done.stdout + done.stderr
    assert "tasks.jsonl line 2" in done.stderr


def test_an_engine_whose_port_is_taken_ends_as_a_host_problem_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = engine_command(
            model_path=str(MODEL), port=port, name="engine-0", device="cpu", extra={},
            dtype="float32",
        )  # fmt: skip
        ended = subprocess.run(
            command.argv, env=os.environ | command.env, capture_output=True, text=True, timeout=1800
        )
    assert ended.returncode == EnvironmentSetupError.exit_code
    assert f"'127.0.0.1', {port}): address already in use" in ended.stdout + ended.stderr
