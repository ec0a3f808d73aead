"""The rules about `--eval-function-path`: what a run with such a function has, and has not."""

from collections.abc import Iterator

from agentrl.config.run import RunConfig

__all__ = ["about_eval_function", "notes_on_eval_function"]

_FLAG = "--eval-function-path"


def about_eval_function(config: RunConfig) -> Iterator[str]:
    """What contradicts itself."""
    if config.eval_function_path is None:
        return
    if config.custom_eval_rollout_log_function_path is not None:
        yield (
            f"{_FLAG} and --custom-eval-rollout-log-function-path: what a function returns is no "
            "list of episodes; log in the function, or return metrics beside the sets, and leave "
            "out the other flag"
        )


def notes_on_eval_function(config: RunConfig) -> Iterator[str]:
    """What the run does not do with named sets."""
    if config.eval_function_path is not None and config.names_eval_sets:
        yield (
            f"{_FLAG} {config.eval_function_path} plays the evaluation sets: those that are named "
            "are its args.eval_datasets, and the run reads none of them"
        )
