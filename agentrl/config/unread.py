"""No flag does nothing: one that was given, and that nothing in this run reads, is refused by name;
or noted, where slime passes over it and its scripts give it (`Condition.is_noted`), and where the
half of a run that would read it is left out: such a flag may stay on the command line.

Given are the flags of the command line, and what a file sets to another value than the default: a
run's own config.toml spells out every default. Of a preset, and of a file whose model is scored
(`--eval-only`), only what the run reads is taken; a note says what a preset loses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.config.conditions import CONDITIONS, ROW_ENVS
from agentrl.config.facts import Half, Mode, mode_of
from agentrl.config.fields import fact_of, own_fields
from agentrl.config.run import RunConfig

__all__ = [
    "about_unread",
    "for_evaluation",
    "is_for_such_a_run",
    "is_read",
    "notes_on_preset",
    "notes_on_unread",
]

_OTHERS: dict[Mode, str] = {
    "policy": "a policy is trained on nothing but what it sampled; leave this out, or give "
    "--loss-type sft_loss",
    "supervised": "--loss-type sft_loss imitates dialogues, without engines, environment or "
    "rewards; leave this out",
    "eval": "an evaluation scores --hf-checkpoint, or --load with its architecture, and trains "
    "nothing; leave this out",
}
#: Of the half that is not there.
_NO_HALF: dict[Half, str] = {
    "learner": "no effect under --debug-rollout-only, which trains nothing",
    "engines": "no effect under --load-debug-rollout-data, which starts no engines or workers",
}


def about_unread(
    config: RunConfig, said: Mapping[str, str], parts: Sequence[RunConfig] = ()
) -> list[str]:
    """A line for each reason why flags of `said` (spellings by field) are refused as unread. One
    that a part of a mixture reads is read."""
    found = {n: text for n, text in said.items() if not _is_noted(config, n)}
    return _lines([config, *parts], found)


def notes_on_unread(
    config: RunConfig, said: Mapping[str, str], parts: Sequence[RunConfig] = ()
) -> list[str]:
    """As `about_unread`, of those that are only noted."""
    found = {n: text for n, text in said.items() if _is_noted(config, n)}
    return _lines([config, *parts], found)


def is_read(config: RunConfig, name: str) -> bool:
    """Whether something in a run of `config` reads the field, or family, of that name."""
    return _why_unread(config, name) is None


def is_for_such_a_run(config: RunConfig, name: str) -> bool:
    """As `is_read`, of a run with the settings of `config` that leaves out neither half."""
    return config.mode in fact_of(name).modes and _is_met(config, name)


def notes_on_preset(config: RunConfig, name: str, values: Mapping[str, Any]) -> list[str]:
    """Which of the `values` of a preset the run leaves out, and why. An evaluation, and a run that
    imitates, leave out what is about learning from rewards without a word."""
    lost: dict[str, list[str]] = {}
    for field, value in values.items():
        why = _why_unread(config, field)
        if why is not None and config.mode in fact_of(field).modes:
            lost.setdefault(why, []).append(_given(field, value))
    # what to do stands behind the reason, and is about a flag that somebody gave
    return [
        f"preset {name} without {', '.join(flags)}: {why.rpartition('; ')[0] or why}"
        for why, flags in lost.items()
    ]


def _given(field: str, value: Any) -> str:
    """A flag and its value, as one would write them."""
    flag = own_fields()[field].spelled(value)
    if isinstance(value, bool):
        return flag
    return f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"


def _lines(ways: Sequence[RunConfig], said: Mapping[str, str]) -> list[str]:
    flags: dict[str, list[str]] = {}
    for name, spelled in said.items():
        reasons = [_why_unread(way, name) for way in ways]
        if (why := reasons[0]) and all(reasons):
            flags.setdefault(why, []).append(spelled)
    return [f"{', '.join(spelled)}: {why}" for why, spelled in flags.items()]


def _is_noted(config: RunConfig, name: str) -> bool:
    fact = fact_of(name)
    if config.mode not in fact.modes:
        return False
    if _is_met(config, name):
        return not fact.halves <= config.halves
    return fact.needs is not None and CONDITIONS[fact.needs].is_noted


def _is_met(config: RunConfig, name: str) -> bool:
    needs = fact_of(name).needs
    return needs is None or CONDITIONS[needs].holds(config)


def _why_unread(config: RunConfig, name: str) -> str | None:
    fact = fact_of(name)
    if config.mode not in fact.modes:
        return _OTHERS[config.mode]
    if fact.needs is not None and not _is_met(config, name):
        return CONDITIONS[fact.needs].otherwise
    return next((_NO_HALF[half] for half in sorted(fact.halves - config.halves)), None)


def for_evaluation(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that an evaluation of its model reads: neither where its training began
    nor which dialogues were imitated."""
    imitates = mode_of({**layer, "eval_only": False}) == "supervised"

    def is_kept(name: str) -> bool:
        fact = fact_of(name)
        is_dialogue = imitates and (fact.holds == "rows" or fact.env_arg is not None)
        return "eval" in fact.modes and name != "load" and not is_dialogue

    return _without_rollout_function({n: v for n, v in layer.items() if is_kept(n)})


def _without_rollout_function(layer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an evaluation in a run whose training episodes such a function plays: the
    environment that plays it plays nothing else."""
    args = dict(layer.get("env_args") or {})
    if args.pop("rollout_function", None) is None:
        return dict(layer)
    return {**layer, "env": ROW_ENVS[0], "env_args": args}
