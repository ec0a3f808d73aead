"""`--custom-rollout-log-function-path` and `--custom-eval-rollout-log-function-path`."""
