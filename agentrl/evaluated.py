"""`Evaluated`: what one call of a function of `--eval-function-path` says of its sets."""

import msgspec

__all__ = ["Evaluated", "ScoredSet"]


class ScoredSet(msgspec.Struct, frozen=True, omit_defaults=True):
    """A set. `rewards` in the order of its samples, `num_samples` of each task one after the other;
    `votes`: what each answers, or none at all; `truncated`: how many were, or None."""

    rewards: list[float]
    num_samples: int = 1
    votes: list[str] = []
    truncated: int | None = None


class Evaluated(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sets by name, and `figures` of all of them. `versions` counts the tokens that engines
    sampled for the call by weight version, in order of version."""

    sets: dict[str, ScoredSet]
    versions: list[tuple[int, int]] = []
    figures: dict[str, float] = {}
