"""`--env-mix FILE`: several Envs or datasets in one run.

    [[parts]]
    name = "maths"
    weight = 3
    prompt_data = "maths.jsonl"
    rm_type = "math"

    [[parts]]
    name = "search"
    weight = [[0, 1.0], [100, 0.2]]     # a curriculum: from 1 to 0.2 within 100 iterations
    env = "search-r1"

Each part is played by the flags of the run with its own in their place (`MixPart.config`).
`shares` says what weights mean, `turns` which part each task comes from. Pure: the settings of the
file are part of the run's own, so a continued run has them whatever became of the file.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from agentrl.config.entries import (
    SHARED_KEYS,
    Entry,
    about_rendering,
    entries_of,
    flags_of,
    raised,
    unknown,
    with_own,
)
from agentrl.config.run import RunConfig
from agentrl.config.unread import about_unread
from agentrl.errors import ConfigError

__all__ = ["FLAG", "MixPart", "parts_of", "shares", "temperatures", "turns", "ways_of", "ways_said"]

FLAG = "--env-mix"

#: The flags that keys stand for, by key.
_FLAGS = {
    **{f"max_{key}_len": f"rollout_max_{key}_len" for key in ("response", "context", "prompt")},
    **{key: key for key in ("prompt_data", "data_source_path", "rm_type", "rm_url", "group_rm")},
    **{key: key for key in ("input_key", "label_key", "tool_key", "reward_key")},
    "temperature": "rollout_temperature",
    **SHARED_KEYS,
}
#: Keys that one may expect, and why no part has one of its own.
_OF_RUN = {
    "top_p": "training needs the probabilities of all tokens (--rollout-top-p 1)",
    "min_p": "training needs the probabilities of all tokens",
    "top_k": "training needs the probabilities of all tokens (--rollout-top-k -1)",
    "n_samples_per_prompt": "groups are of one size: give --n-samples-per-prompt",
}
_KNOWN = ("name", "weight", "eval", *_FLAGS, *_OF_RUN)
#: It stands in names of metrics, of evaluation sets and of processes.
_NAME = re.compile(r"(?!eval\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,39}")

Point = tuple[float, float]


class MixPart(msgspec.Struct, frozen=True):
    """One part. `weight`: points (iteration, weight), in order. `eval`: what it says of its
    evaluation sets; empty: those that its Env brings."""

    name: str
    config: RunConfig
    weight: list[Point]
    eval: list[Any] = []

    @property
    def whose(self) -> str:
        """As in `--env-mix: maths`, for errors."""
        return f"{FLAG}: {self.name}"


def parts_of(config: RunConfig) -> list[MixPart]:
    """The parts of a run, in the order of the file; none where it is no mixture. Raises ConfigError
    with a line for each that cannot be."""
    if not config.env_mix:
        return []
    read = [_part(config, entry) for entry in entries_of(config.env_mix, "parts", FLAG)]
    raised(line for _, problems in read for line in problems)
    parts = [part for part, _ in read]
    places = sorted({0.0, *(iteration for part in parts for iteration, _ in part.weight)})
    raised(
        f"{FLAG}: at iteration {place:g} no part has a weight, so no task could be drawn"
        for place in places
        if not sum(_weight(part.weight, place) for part in parts)
    )
    return parts


def ways_said(config: RunConfig) -> list[RunConfig]:
    """The flags of each part, as far as the file can be read: of parts that are refused, too."""
    try:
        entries = entries_of(config.env_mix, "parts", FLAG) if config.env_mix else []
    except ConfigError:
        return []
    return [_part(config, entry)[0].config for entry in entries]


def ways_of(config: RunConfig) -> list[RunConfig]:
    """The flags under which tasks of this run are played: of each part, or of the run."""
    return [part.config for part in parts_of(config)] or [config]


def temperatures(config: RunConfig) -> dict[str, float]:
    """By part, what the learner divides the logits of its tokens by; empty where that is
    `RunConfig.scoring_temperature` for all."""
    found = {part.name: part.config.scoring_temperature for part in parts_of(config)}
    return found if {*found.values()} - {config.scoring_temperature} else {}


def shares(weights: Sequence[Sequence[Point]], iteration: float) -> list[float]:
    """The share of tasks that each part has at `iteration`; they add up to 1. Between two points a
    weight is on the straight line, before the first and after the last it is theirs."""
    found = [_weight(points, iteration) for points in weights]
    total = sum(found)
    return [weight / total for weight in found]


def turns(weights: Sequence[Sequence[Point]], tasks_per_iteration: int) -> Iterator[int]:
    """Which part each task comes from, without end: the one that is furthest behind its share.

    Smooth weighted round robin: nothing is drawn, tasks from the first on have each part as often
    as its share says, give or take one for each other part, and the order is the same whenever it
    is asked for.
    """
    credit = [0.0] * len(weights)
    for iteration in count():
        now = shares(weights, iteration)
        in_turn = [index for index, share in enumerate(now) if share > 0]
        for _ in range(tasks_per_iteration):
            credit = [have + share for have, share in zip(credit, now, strict=True)]
            chosen = max(in_turn, key=lambda index: credit[index])
            credit[chosen] -= 1
            yield chosen


def _part(config: RunConfig, entry: Entry) -> tuple[MixPart, list[str]]:
    """The part of one entry, and a line for each reason why it is none."""
    told = entry.told
    name, found = str(told["name"]), list[str]()
    whose = f"{FLAG}: {name}"
    if not _NAME.fullmatch(name):
        found.append(
            f"{FLAG}: a part cannot be called {name!r:.60}: its metrics and processes bear its "
            "name, of 1 to 40 letters, digits, dots, dashes and underscores, and not eval0"
        )
    found += unknown(told, _KNOWN, whose)
    found += [f"{whose}: {key}: {_OF_RUN[key]}" for key in sorted(_OF_RUN.keys() & told.keys())]
    weight = _points(told.get("weight", 1))
    if weight is None:
        found.append(
            f"{whose}: weight is {told['weight']!r:.80}, and must be a number of 0 or more, or "
            "points [[iteration, weight], ...] in order"
        )
    sets = told.get("eval", [])
    if not isinstance(sets, list):
        found.append(f"{whose}: eval is {sets!r:.80}, and must be a list of tables with a `name`")
    own = with_own(config, flags_of(told, _FLAGS, whose, found))
    # A part is a run of its own, and its evaluations are asked for by the run.
    alone = msgspec.structs.replace(
        own, env_mix={}, eval_config=None, eval_prompt_data=[], eval_interval=None
    )
    said = {_FLAGS[key]: key for key in _FLAGS if key in entry.own and key in told}
    found += about_rendering(alone, told, whose)
    found += [f"{whose}: {line}" for line in about_unread(alone, said)]
    return MixPart(name, alone, weight or [], sets), found


def _points(said: Any) -> list[Point] | None:
    """A weight as points; None for what is none."""
    pairs = said if isinstance(said, list) else [[0, said]]
    if not pairs or not all(_is_point(pair) for pair in pairs):
        return None
    points = [(float(iteration), float(weight)) for iteration, weight in pairs]
    places = [iteration for iteration, _ in points]
    return points if places == sorted(set(places)) else None


def _is_point(pair: Any) -> bool:
    return (
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in pair)
        and all(math.isfinite(n) and n >= 0 for n in pair)
    )


def _weight(points: Sequence[Point], iteration: float) -> float:
    before = [point for point in points if point[0] <= iteration]
    after = [point for point in points if point[0] > iteration]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (low, at_low), (high, at_high) = before[-1], after[0]
    return at_low + (at_high - at_low) * (iteration - low) / (high - low)
