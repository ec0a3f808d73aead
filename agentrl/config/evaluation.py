"""Rules between the flags of evaluation.

`--eval-only` means that nothing is trained. Of a file (most often a run's own) it leaves out what
says how a model is trained; given as flags, the same things are refused, because they would do
nothing. `--eval-mode pinned` is refused where no push would ever wait.
"""

from typing import Any

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError

__all__ = ["check_evaluation", "without_training"]

#: Fields that only training reads, and that only training is given.
_FLAGS = ("save", "save_hf", "eval_interval", "eval_mode", "skip_eval_before_train")
_OBJECTIVE = (
    "loss_type",
    "custom_loss_function_path",
    "prompt_loss_weight",
    "use_kl_loss",
    "kl_loss_coef",
)
#: What says which dialogues are imitated; an Env that scores has tasks of its own.
_DIALOGUES = ("prompt_data", "input_key", "label_key", "num_epoch", "rollout_shuffle")


def without_training(file: dict[str, Any]) -> dict[str, Any]:
    """The settings of `file` that an evaluation can mean anything by."""
    dialogues = _DIALOGUES if file.get("loss_type") == "sft_loss" else ()
    left_out = ("load", *_FLAGS, *_OBJECTIVE, *dialogues)
    return {name: value for name, value in file.items() if name not in left_out}


def check_evaluation(config: RunConfig) -> None:
    """Raise ConfigError for flags that do nothing beside `--eval-only`, and for an `--eval-mode`
    that does nothing in the run."""
    if not config.eval_only:
        _check_mode(config)
        return
    default = RunConfig()
    given = [
        "--" + name.replace("_", "-")
        for name in _FLAGS
        if getattr(config, name) != getattr(default, name)
    ]
    if given:
        raise ConfigError(
            f"{', '.join(given)}: an evaluation scores --hf-checkpoint, or --load with its "
            "architecture, and trains nothing; leave this out"
        )


def _check_mode(config: RunConfig) -> None:
    interval, iterations = config.eval_interval, config.num_rollout
    if config.eval_mode != "pinned":
        return
    if interval is None:
        raise ConfigError(
            "--eval-mode pinned holds pushes back for the evaluations of --eval-interval, which is "
            "not given; name the iterations between them (the first and the last evaluation of a "
            "run are of one version each without it)"
        )
    if iterations is not None and iterations <= interval:
        raise ConfigError(
            f"--eval-mode pinned with --eval-interval {interval} and --num-rollout {iterations}: "
            "no evaluation beside training would come before the last push; lower "
            f"--eval-interval below {iterations}, or leave both out"
        )
