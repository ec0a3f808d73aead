"""Evaluation sets from files, and the rules about evaluations.

`--eval-prompt-data` names sets and files in turn, NAME PATH [NAME PATH ...]; given again, it adds
to them. A path alone, as slime takes it, is a set of the name that slime gives it.
"""

from collections.abc import Iterator

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["about_evaluations", "eval_files", "notes_on_evaluations"]

_FLAG = "--eval-prompt-data"
_ALONE = "aime"


def eval_files(config: RunConfig) -> dict[str, str]:
    """Files of rows by the names of their sets. Raises ConfigError for words that are no pairs, and
    names that are given twice."""
    words = config.eval_prompt_data
    if len(words) == 1:
        return {_ALONE: words[0]}
    if len(words) % 2:
        raise ConfigError(
            f"{_FLAG} has {len(words)} words ({' '.join(words)}); it wants pairs: NAME PATH"
        )
    names = words[::2]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{_FLAG} names {', '.join(repeated)} twice; names must differ")
    return dict(zip(names, words[1::2], strict=True))


def about_evaluations(config: RunConfig) -> Iterator[str]:
    """What cannot be an evaluation beside training."""
    interval, iterations = config.eval_interval, config.num_rollout
    if config.eval_mode == "pinned" and interval and iterations and iterations <= interval:
        yield (
            f"--eval-mode pinned with --eval-interval {interval} and --num-rollout {iterations}: "
            "no evaluation beside training would come before the last push; lower "
            f"--eval-interval below {iterations}, or leave both out"
        )


def notes_on_evaluations(config: RunConfig) -> Iterator[str]:
    """How the sets were understood, where somebody may have meant another thing."""
    if len(config.eval_prompt_data) == 1:
        yield (
            f"{_FLAG} {config.eval_prompt_data[0]}: a path alone is a set that is called {_ALONE}, "
            "as in slime; write NAME PATH to name it"
        )
