"""Values that are refused whatever else is given: what can be told of one flag alone.

The rules, and their words, are those of a run; here each is asked of a configuration that has the
one value and defaults. A name that stands for the user's own code is not looked for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentrl.config.facts import mode_of
from agentrl.config.objective import about_objective
from agentrl.config.retention import about_retention
from agentrl.config.run import RunConfig
from agentrl.config.sampling import about_sampling
from agentrl.config.validate import about_engine_ranks
from agentrl.shipped import ALGORITHMS, CHAT_FORMATS, FILTERS, Shelf, about_reward
from agentrl.user_code import Kind, announced, unknown

__all__ = ["about_values"]

Rule = Callable[[RunConfig], Iterable[str]]

_RULES: dict[str, Rule] = {
    "eps_clip": about_objective,
    "eval_top_k": about_sampling,
    "rollout_stop": about_sampling,
    "rollout_top_k": about_sampling,
    "rollout_top_p": about_sampling,
    "save_hf": about_retention,
    "sglang": about_engine_ranks,
}


def _names(group: str, noun: str, shelf: Shelf) -> Kind[object]:
    """What `unknown` has to know of a kind."""
    return Kind(group, noun, "", "", lambda value: value, shelf.places)


_NAMED = {
    "advantage_estimator": _names("agentrl.algorithms", "algorithm", ALGORITHMS),
    "chat_format": _names("agentrl.formats", "chat format", CHAT_FORMATS),
    "dynamic_sampling_filter_path": _names("agentrl.filters", "filter", FILTERS),
}


def about_values(values: Mapping[str, Any], whole: Mapping[str, Any]) -> list[str]:
    """A line for each of `values` that is refused by itself, in a run of the mode that `whole`
    says."""
    mode = {name: whole[name] for name in ("eval_only", "loss_type") if name in whole}
    lines: list[str] = []
    if mode_of(mode) == "supervised":
        return lines
    for name, value in values.items():
        if name in _RULES:
            lines += _RULES[name](RunConfig(**{**mode, name: value}))
        elif name in _NAMED:
            lines += _about_name(_NAMED[name], value)
        elif name == "rm_type" and (wrong := about_reward(value)):
            lines.append(wrong)
    return lines


def _about_name(kind: Kind[object], name: str) -> list[str]:
    is_place = ":" in name or "." in name or "/" in name
    is_known = is_place or any(name == known for known, _ in announced(kind))
    return [] if is_known else [str(unknown(kind, name))]
