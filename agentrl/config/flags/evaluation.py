"""Evaluations: sets, and when they are played. Nothing is trained on them."""

from functools import partial
from typing import Annotated, Literal

from agentrl.config.facts import ACTS, ALL, FREE, GROUPS, POLICY, Count, flag
from agentrl.config.flags.serving import ServingFlags

__all__ = ["EvaluationFlags"]

_flag = partial(flag, group="evaluation", on_resume=FREE, modes=POLICY)
_played = partial(_flag, modes=ACTS, needs="evaluation_sets")


class EvaluationFlags(ServingFlags, frozen=True, kw_only=True):
    """Evaluations: sets, and when they are played. Nothing is trained on them."""

    eval_prompt_data: Annotated[
        list[str], _flag("evaluation sets: NAME PATH [NAME PATH ...]", modes=ACTS)
    ] = []
    eval_interval: Annotated[
        Count | None,
        _flag(
            "iterations between evaluations beside training (default: before the first iteration "
            "and after the last, with nothing else running)"
        ),
    ] = None
    eval_mode: Annotated[
        Literal["beside", "pinned"],
        _flag(
            "evaluations of --eval-interval: beside lets pushes go on, so a score may mix "
            "versions; pinned holds pushes back until a set is done",
            needs="eval_interval",
        ),
    ] = "beside"
    eval_only: Annotated[
        bool,
        _flag("evaluate --hf-checkpoint once, train nothing, and end", modes=ALL, on_resume=GROUPS),
    ] = False
    n_samples_per_eval_prompt: Annotated[int, _played("episodes of each evaluation task", ge=1)] = 1
    eval_temperature: Annotated[
        float, _played("temperature of evaluation turns; 0 is greedy", ge=0)
    ] = 0.0
    skip_eval_before_train: Annotated[
        bool, _flag("no evaluation before the first iteration", needs="evaluation_sets")
    ] = False
