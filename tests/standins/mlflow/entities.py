"""The entities of mlflow that a batch is made of."""

from typing import NamedTuple

__all__ = ["Metric", "Param"]


class Metric(NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


class Param(NamedTuple):
    key: str
    value: str
