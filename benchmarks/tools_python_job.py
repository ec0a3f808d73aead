"""What `tools-python` teaches a model that is careless with its tools, on two cores.

    python -m benchmarks.tools_python_job [--seeds 0] [--num-rollout 30]
        [--output runs/tools_python]

`scripts/tools_python/sloppy.py` makes a model that can call the tools and seldom calls them right
(`OUTPUT/warm`); then `train_async.py` trains on four kinds of problems from it, once for each seed
(`OUTPUT/seed-N`), and answers the held-out ones greedily before, between and after. Programs run in
bubblewrap, without which no run starts. What is done is left as it is, so a call that was cut can
be given again. `scripts/tools_python/tools_python_page.py` writes `docs/results/tools-python.md`.
"""

import json

from benchmarks import ROOT
from benchmarks.small_job import SmallJob

SCRIPTS = ROOT / "scripts" / "tools_python"
#: The kinds that the warm start has shown.
KINDS = ("expression", "shop", "journey", "digits")
JOB = SmallJob(
    name="tools_python_job",
    warm=SCRIPTS / "sloppy.py",
    model="habit/hf",
    page=SCRIPTS / "tools_python_page.py",
    flags={
        "env": "tools-python",
        "env-args": json.dumps({"kinds": KINDS}),
        "max-turns": 3,
        "rollout-max-response-len": 96,
        "rollout-max-context-len": 512,
        "lr": 2e-4,
        "min-lr": 2e-5,
        "eval-interval": 5,
    },
    sampled={
        "reward": "rollout/reward_mean",
        "calls": "rollout/tool_calls",
        "errors": "rollout/tool_errors",
    },
    num_rollout=30,
)


if __name__ == "__main__":
    JOB.main()
