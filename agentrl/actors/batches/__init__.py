"""A function of `--rollout-function-path`: episodes that are played many at a time."""
