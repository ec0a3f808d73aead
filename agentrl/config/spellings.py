"""Flags of slime and of its peers that agentrl does not have, and what to write instead.

A flag of slime that agentrl has keeps slime's spelling, so none of those is here. Two tables: other
names of an idea that agentrl has, and ideas that are done otherwise. Keys of configuration files,
with underscores, are recognised as well.
"""

__all__ = ["advice"]

_MAX_STALENESS = "--max-staleness (greatest age of a trained token, in iterations)"
_BUFFER = "--async-buffer-size (iterations that generation may run ahead)"
_BY_STEPS = (
    "a step takes rollout-batch-size / num-steps-per-rollout groups; set --num-steps-per-rollout"
)
_ENV_REWARDS = (
    "the environment scores its episodes; choose or write one with --env, or name a reward of "
    "single answers with --custom-rm-path"
)
_ALWAYS_PACKED = "micro-batches are always packed up to --max-tokens-per-gpu; leave the flag out"

_RENAMED = {
    "async-generation-ratio": _BUFFER,
    "batch-size": "--rollout-batch-size (groups in an iteration)",
    "buffer-size": _BUFFER,
    "group-size": "--n-samples-per-prompt",
    "learning-rate": "--lr",
    "max-batches-offpolicy": _MAX_STALENESS,
    "max-head-offpolicyness": _MAX_STALENESS,
    "max-lag": _MAX_STALENESS,
    "max-lookahead-versions": _BUFFER,
    "max-off-policy-steps": _MAX_STALENESS,
    "max-policy-version-lag": _MAX_STALENESS,
    "max-staleness-steps": _MAX_STALENESS,
    "max-trajectory-age-steps": _MAX_STALENESS,
    "max-weight-staleness": _MAX_STALENESS,
    "staleness-threshold": _MAX_STALENESS,
    "target-offpolicy-steps": _MAX_STALENESS,
    "async-data-buffer-capacity-factor": _BUFFER,
    "async-unused-samples-handler": "--staleness-policy (mask or drop)",
    "pause-generation-mode": "--partial-rollout (a turn goes on through pushes, or is cut)",
    "async-max-concurrent-samples": "--max-concurrent-episodes (episodes of one agent worker)",
    "generate-max-turns": "--max-turns",
    "num-data-workers": "--num-agent-workers",
    "max-seq-len": "--rollout-max-context-len",
    "model-path": "--hf-checkpoint",
    "sglang-router-request-timeout-secs": "--turn-timeout-s",
    "num-generations": "--n-samples-per-prompt",
    "max-response-length": "--rollout-max-response-len",
    "environment": "--env",
}

_OTHERWISE = {
    "apply-chat-template": "prompts are always rendered by --chat-format; leave the flag out",
    "balance-data": "rows are always balanced over ranks by length; leave the flag out",
    "balance-by-flops": "rows are always balanced over ranks by length; leave the flag out",
    "colocate": "engines and learner have devices of their own: set --actor-num-gpus-per-node and "
    "--rollout-num-gpus",
    "custom-generate-function-path": "write an Env and give it with --env pkg.module:Class",
    "fully-async": "train_async.py always is; --async-buffer-size says how far ahead",
    "global-batch-size": _BY_STEPS,
    "group-rm": _ENV_REWARDS,
    "micro-batch-size": _ALWAYS_PACKED,
    "reward-key": _ENV_REWARDS,
    "rm-type": _ENV_REWARDS,
    "rm-url": _ENV_REWARDS,
    "rollout-function-path": "write an Env and give it with --env pkg.module:Class",
    "use-dynamic-batch-size": _ALWAYS_PACKED,
    "use-tensorboard": "TensorBoard files are always written; leave the flag out",
}


def advice(name: str) -> str | None:
    """What to do instead of the flag or key `name` (any spelling), or None when it is not known."""
    key = name.lstrip("-").removeprefix("no-").replace("_", "-")
    if key in _RENAMED:
        return f"agentrl calls it {_RENAMED[key]}"
    return _OTHERWISE.get(key)
