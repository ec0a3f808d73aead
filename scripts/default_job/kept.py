"""The models that a run kept while it was trained, and what they answer right.

    RUN/models/N     the model after iteration N
    RUN/curve.json   rewards of one question set, question by question, after some iterations

Iteration 0 is the model that the run began with. A curve grows by whole iterations, so scoring that
was cut goes on where it was.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from agentrl.disk import replace_file
from agentrl.errors import DataError

__all__ = ["CURVE", "MODELS", "Curve", "choose", "kept_models", "read_curve", "write_curve"]

CURVE, MODELS = "curve.json", "models"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy rewards by iteration, in the order of the questions of the set `questions`."""

    questions: str
    without_search: bool
    rewards: dict[int, list[float]] = {}


def kept_models(run: Path) -> dict[int, Path]:
    """The models of a run directory by iteration, in order; one that is half written is none."""
    found = (path for path in (run / MODELS).glob("*") if path.name.isdecimal())
    return {int(path.name): path for path in sorted(found, key=lambda path: int(path.name))}


def choose(wanted: Iterable[int], kept: Iterable[int]) -> list[int]:
    """The iterations to be scored: 0, of the wanted ones those that were kept, and the last."""
    there = set(kept)
    return sorted({0, *(there & set(wanted)), max(there, default=0)})


def read_curve(run: Path) -> Curve | None:
    """The curve of a run directory; None when there is none. Raises DataError when it is broken."""
    path = run / CURVE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Curve)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; remove it and score again") from error


def write_curve(run: Path, curve: Curve) -> None:
    """Replace the curve of a run directory, at once."""
    ordered = msgspec.structs.replace(curve, rewards=dict(sorted(curve.rewards.items())))
    replace_file(run / CURVE, msgspec.json.encode(ordered) + b"\n")
