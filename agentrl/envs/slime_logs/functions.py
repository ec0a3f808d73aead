"""Log functions of slime's users, as they are called, and what becomes of what they log.

    log(rollout_id, args, samples, rollout_extra_metrics, rollout_time) -> bool
    log(rollout_id, args, data, extra_metrics) -> bool
    log(args, all_samples, data_source)                     what it returns is not read

Figures of an iteration, or an evaluation, are what the function hands to slime's `log`, and what it
adds to the extra metrics. Where it returns True they stand alone before trackers. What is no finite
number is left out and told; so is whatever the function raises.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from agentrl.config.args import Args
from agentrl.config.run import RunConfig
from agentrl.envs.no_tasks import NoTasks
from agentrl.envs.slime_stand_in.logging_utils import taking
from agentrl.errors import ConfigError
from agentrl.user_code import Kind, Signature, hook, load, place_in
from agentrl.user_traceback import place_of, words_of
from agentrl.wire.messages import Logged

__all__ = ["ALL_SAMPLES", "EVALUATION", "KINDS", "ROLLOUT", "logged"]

ROLLOUT = "custom_rollout_log_function_path"
EVALUATION = "custom_eval_rollout_log_function_path"
ALL_SAMPLES = "rollout_all_samples_process_path"
#: Figures of one call, and characters of a name: all travel in one message.
MAX_FIGURES, MAX_NAME = 4096, 256
#: Axes, which are known.
_STEPS = ("rollout/step", "eval/step", "train/step")
#: A function of all samples is called while the run mints its tasks by itself.
_NO_TASKS = NoTasks(
    "data_source gives a function of --rollout-all-samples-process-path nothing, and takes nothing "
    "back: tasks are given out ahead of it; a class of --data-source-path chooses them"
)


def _kind(field: str, *parameters: str) -> Kind[Callable[..., Any]]:
    return hook(
        f"log({', '.join(parameters)})",
        [Signature(parameters, is_slimes=True)],
        group="agentrl.log_functions",
        noun="log function",
        flag=f"--{field.replace('_', '-')}",
        builtin={},
    )


_EXTRA = ("samples", "rollout_extra_metrics", "rollout_time")
#: By the field of the flag.
KINDS: Mapping[str, Kind[Callable[..., Any]]] = {
    ROLLOUT: _kind(ROLLOUT, "rollout_id", "args", *_EXTRA),
    EVALUATION: _kind(EVALUATION, "rollout_id", "args", "data", "extra_metrics"),
    ALL_SAMPLES: _kind(ALL_SAMPLES, "args", "all_samples", "data_source"),
}


def logged(field: str, config: RunConfig, iteration: int, given: Any, *more: Any) -> Logged:
    """Call the function of `field` with what is `given`: of an iteration or an evaluation with an
    empty dict for metrics too, and `more`."""
    place = getattr(config, field)
    extra: dict[str, Any] = {}
    alone, told = False, ""
    function = None
    call: Literal["made", "lost"] = "made"
    with taking() as taken:
        try:
            function = load(KINDS[field], place)
            if field == ALL_SAMPLES:
                function(Args(config), given, _NO_TASKS)
            else:
                alone = bool(function(iteration, Args(config), given, extra, *more))
        except ConfigError as error:
            told = str(error)
            call = "made" if function else "lost"
        except (Exception, SystemExit) as error:
            where = f": {place_in(function)}" if function and not place_of(error) else ""
            told = f"{KINDS[field].flag} {place}: {words_of(error)}{where}"
    figures, lost = _figures([*taken, *([] if alone else [extra])])
    if lost:
        told = told or f"{KINDS[field].flag} {place}: {lost}"
    return Logged(figures, alone, told, call)


def _figures(taken: Iterable[Mapping[str, Any]]) -> tuple[dict[str, float], str]:
    """Names with their numbers, the last of a name, and what is said of others."""
    every = {str(name): value for each in taken for name, value in each.items()}
    figures: dict[str, float] = {}
    lost = []
    for name, value in every.items():
        number = _number(value)
        if name in _STEPS:
            continue
        if number is None or len(name) > MAX_NAME or len(figures) == MAX_FIGURES:
            shown = value if isinstance(value, float) else type(value).__name__
            lost.append(f"{name:.60} ({shown})")
        else:
            figures[name] = number
    if not lost:
        return figures, ""
    more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
    return figures, (
        f"left out was {', '.join(lost[:3])}{more}: what is logged are finite numbers, "
        f"{MAX_FIGURES} at most, under names of {MAX_NAME} characters"
    )


def _number(value: Any) -> float | None:
    try:
        value = value.item() if hasattr(value, "item") else value
        number = float(value) if isinstance(value, (bool, int, float)) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None
