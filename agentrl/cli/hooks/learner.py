"""Functions that every rank of the learner calls (`agentrl/learner/hooks.py`), tried as far as they
can be without one: those that see a lease in two iterations over a small one, that for the process
with `args`. Those that are given Megatron-core's objects are loaded, and not called.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.cli.hooks.noted import shown
from agentrl.cli.hooks.trial import HookTrial
from agentrl.cli.hooks.worker import about, task_of
from agentrl.errors import HookError
from agentrl.learner.algorithm_trial import play_with_hooks
from agentrl.learner.conversion_answer import unread_keys
from agentrl.learner.hooks import AFTER_WRITE, INIT, LearnerHooks

__all__ = [
    "after_write",
    "before_log_prob",
    "before_train_step",
    "convert",
    "data_postprocess",
    "init",
    "sample_filter",
]

_ENGINES = ["http://127.0.0.1:30000"]


def sample_filter(trial: HookTrial) -> Iterator[str]:
    """Train with it. Raises HookError as a run does."""
    yield _played(trial)
    _, groups = trial.noted.given
    samples = [sample for group in groups for sample in group]
    num_removed = sum(bool(sample.remove_sample) for sample in samples)
    yield f"at last it removed {num_removed} of {len(samples)} samples"


def convert(trial: HookTrial) -> Iterator[str]:
    """Train with it, on episodes of the first task. Raises HookError as a run does."""
    task = task_of(trial.config)
    yield _played(trial, task.row)
    yield about(task)
    _, samples = trial.noted.given
    gave = trial.noted.gave
    rewards = gave["rewards"]
    yield f"at last it returned {len(rewards)} of {len(samples)} samples, worth {shown(rewards)}"
    if names := ", ".join(unread_keys(gave)):
        yield f"nothing reads what it returned as {names}"


def data_postprocess(trial: HookTrial) -> Iterator[str]:
    """Train with it. Raises HookError as a run does."""
    yield _played(trial)
    *_, data = trial.noted.given
    yield f'at last rollout_data["advantages"] was {shown(data["advantages"])}'
    num_trained = sum(bool(value) for mask in data["loss_masks"] for value in mask)
    yield f'at last rollout_data["loss_masks"] had {num_trained} tokens to train'


def init(trial: HookTrial) -> Iterator[str]:
    """Call it. Raises HookError as a run does, though it may be for want of Megatron."""
    try:
        LearnerHooks(trial.config).call(INIT, _alone)
    except HookError as error:
        groups = "a run has Megatron's process groups by then, and here there are none"
        raise HookError(f"{error}; {groups}") from error
    yield "called with args, without Megatron's process groups, which a run has by then"


def after_write(trial: HookTrial) -> Iterator[str]:
    """Call it about a folder without a push. Raises HookError as a run does."""
    with tempfile.TemporaryDirectory() as folder:
        version_dir = str(Path(folder) / "weight_v000000")
        Path(version_dir).mkdir()
        LearnerHooks(trial.config).call_here(AFTER_WRITE, version_dir, _ENGINES)
    yield f"called with args, an empty folder weight_v000000, and {_ENGINES}, where nobody listens"


def before_log_prob(trial: HookTrial) -> Iterator[str]:
    """Say what has to be done instead."""
    yield _not_called("model", "--num-rollout 1 --num-steps-per-rollout 2")


def before_train_step(trial: HookTrial) -> Iterator[str]:
    """Say what has to be done instead."""
    yield _not_called("model and optimizer", "--num-rollout 1")


def _played(trial: HookTrial, row: Mapping[str, Any] | None = None) -> str:
    play_with_hooks(trial.config, row)
    num = trial.noted.num_calls
    return f"tried in two iterations over a small lease on one rank, and called {num} times"


def _not_called(given: str, flags: str) -> str:
    return (
        f"its signature is right; it was not called, for it is given Megatron-core's {given}: a "
        f"run of one iteration tries it ({flags})"
    )


def _alone(value: Any) -> list[Any]:
    return [value]
