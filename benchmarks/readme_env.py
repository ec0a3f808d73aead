"""What the environment of the README learns, by the very code and commands that stand there.

Saves its block of Python, runs its block of shell from a folder of its own, and reads the mean
reward of each iteration: that of the first three against that of the last three. The environment
has four tasks, on which it is trained and measured: what rises is how the tool is used.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT, Row, report

ENDS = 3
LIMIT_S = 1200.0


def block(language: str, beginning: str) -> str:
    """The fenced block of the README in this language that contains `beginning`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (only,) = [body for body in found if beginning in body]
    return str(only)


def commands() -> str:
    """The shell's part, as it runs in any folder with the environment active."""
    shell = block("bash", "origins.py:Origins").replace("source .venv/bin/activate\n", "")
    return shell.replace("train_async.py", str(ROOT / "train_async.py")).replace(
        "agentrl/envs/search_r1/model", str(ROOT / "agentrl/envs/search_r1/model")
    )


def play(folder: Path, seed: int) -> list[Row]:
    (folder / "origins.py").write_text(block("python", "class Origins(Env)"), encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    shell = f"{commands().rstrip()} --run-id run --seed {seed} --rollout-seed {seed}"
    begin = time.monotonic()
    subprocess.run(
        ["bash", "-euc", shell], cwd=folder, check=True, timeout=LIMIT_S,
        env=os.environ | {"PATH": path},
    )  # fmt: skip
    seconds = time.monotonic() - begin
    return rows_of((folder / "runs" / "run" / "metrics.jsonl").read_text(), seed, seconds)


def rows_of(text: str, seed: int, seconds: float) -> list[Row]:
    """Mean reward at both ends of a `metrics.jsonl`."""
    lines = [json.loads(line) for line in text.splitlines()]
    rewards = [x["metrics"]["rollout/reward_mean"] for x in lines if x.get("metrics")]
    first, last = statistics.fmean(rewards[:ENDS]), statistics.fmean(rewards[-ENDS:])
    name = f"seed {seed}"
    return [
        Row(f"{name}: iterations", len(rewards), "iterations"),
        Row(f"{name}: reward, first {ENDS}", round(first, 3), "mean of episodes"),
        Row(f"{name}: reward, last {ENDS}", round(last, 3), "mean of episodes", "the first"),
        Row(f"{name}: whole program", round(seconds, 1), "s"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    rows = []
    for seed in parser.parse_args().seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows += play(Path(folder), seed)
    report("readme_env", rows)


if __name__ == "__main__":
    main()
