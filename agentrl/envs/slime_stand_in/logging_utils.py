"""`log`: figures that a function of slime's users hands to whatever a run is tracked by."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["log"]

_taken: list[Mapping[str, Any]] | None = None


def log(args: Any, metrics: Mapping[str, Any], step_key: str | None = None) -> None:
    """Add `metrics` to those of the iteration, or the evaluation, that the function is called for.
    The value under `step_key` is left out: the iteration is known. Raises RuntimeError where
    nothing is asked to log."""
    del args
    if _taken is None:
        raise RuntimeError(
            "log() is read within the functions of --custom-rollout-log-function-path, "
            "--custom-eval-rollout-log-function-path and --rollout-all-samples-process-path; give "
            "their flag, or leave it out here"
        )
    _taken.append({name: value for name, value in metrics.items() if name != step_key})


@contextmanager
def taking() -> Iterator[list[Mapping[str, Any]]]:
    """While this lasts, what is logged is added to the list."""
    global _taken
    taken: list[Mapping[str, Any]] = []
    _taken = taken
    try:
        yield taken
    finally:
        _taken = None
