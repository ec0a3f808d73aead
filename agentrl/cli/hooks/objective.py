"""Parts of the objective, tried by the trial that a run begins with: two iterations over a small
lease that nobody played (`agentrl/learner/algorithm_trial.py`)."""

from collections.abc import Iterator

from agentrl.cli.hooks.noted import shown
from agentrl.cli.hooks.trial import HookTrial
from agentrl.learner.algorithm_trial import trial_here

__all__ = ["trained"]


def trained(trial: HookTrial) -> Iterator[str]:
    """Train with it. Raises ConfigError for what a run would refuse."""
    trial_here(trial.config, trial.said)
    noted = trial.noted
    times = "once" if noted.num_calls == 1 else f"{noted.num_calls} times"
    called = f", and called {times}" if noted.num_calls else ""
    yield f"tried in two iterations over a small lease{called}"
    if noted.num_calls:
        gave = noted.gave
        if gave is None and len(noted.given) == 2 and isinstance(noted.given[1], dict):
            gave = noted.given[1].get("advantages")  # of a rollout_data that it writes to
        yield f"its last result: {shown(gave)}"
