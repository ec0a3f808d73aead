"""What `units/convert` teaches a model that is careless with its tools, on two cores.

    python -m benchmarks.units_job [--seeds 0] [--num-rollout 40] [--output runs/units]

`scripts/units/rash.py` makes a model that can convert units with the tools and seldom does it right
(`OUTPUT/warm`); then `train_async.py` trains from it, once for each seed (`OUTPUT/seed-N`), and
answers the held-out questions greedily before, between and after. The environment's package need
not be installed: its folder is on the path of all that is started, and its Env is named by its
module. What is done is left as it is, so a call that was cut can be given again.
`scripts/units/units_page.py` writes `docs/results/units.md`.
"""

from benchmarks import ROOT
from benchmarks.small_job import SmallJob

SCRIPTS = ROOT / "scripts" / "units"
JOB = SmallJob(
    name="units_job",
    warm=SCRIPTS / "rash.py",
    model="habit/hf",
    page=SCRIPTS / "units_page.py",
    package=ROOT / "envs_contrib" / "units",
    flags={
        "env": "agentrl_units:ConvertEnv",
        "max-turns": 5,
        "rollout-max-response-len": 96,
        "rollout-max-context-len": 512,
        # with 2e-4 it settles on a wrong order of calculations before it has seen enough right ones
        "lr": 1e-4,
        "min-lr": 1e-5,
    },
    sampled={
        "reward": "rollout/reward_mean",
        "calls": "rollout/tool_calls",
        "errors": "rollout/tool_errors",
    },
    num_rollout=40,
)


if __name__ == "__main__":
    JOB.main()
