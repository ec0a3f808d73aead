"""A program as the agent of a rollout: it reads a task, asks the model once and prints a reward."""

import sys
from pathlib import Path

from agentrl.envs.program import Program
from agentrl.envs.rollout import Rollout

AGENT = """
import json, os, subprocess, sys, time, urllib.request

key = os.environ["OPENAI_API_KEY"]

task = json.load(sys.stdin)
{before}
base = os.environ["OPENAI_BASE_URL"]
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": task["question"]}]})
head = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
asked = urllib.request.Request(base + "/chat/completions", body.encode(), head)
with urllib.request.urlopen(asked) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
print("<tool_call>I print what I like</tool_call>")
{rest}
metrics = {"seed": int(os.environ["AGENTRL_SEED"])}
print(json.dumps({"reward": float(said == task["answer"]), "metrics": metrics}))
"""


def program(tmp_path: Path, rest: str = "", before: str = "", **variables: str) -> type[Rollout]:
    path = tmp_path / "agent.py"
    path.write_text(AGENT.replace("{rest}", rest).replace("{before}", before))

    class Here(Program):
        def __init__(self) -> None:
            super().__init__(argv=[sys.executable, str(path)], variables=variables)

    return Here
