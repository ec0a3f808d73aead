"""`Registry`: metrics by name, and what to make of a name that nobody declared.

That is a mistake: `Registry(strict=True)` raises, otherwise it is logged once and the value is
kept. An Env may count what it does not explain: `rollout/` names are kept without a word.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

__all__ = ["Metric", "Reduction", "Registry"]

logger = logging.getLogger(__name__)

_FAMILIES = ("rollout", "train", "buffer", "perf", "eval")


#: How reports of one metric become one number (`agentrl.learner.measures`).
Reduction = Literal["sum", "mean", "max", "ess"]


class Metric(msgspec.Struct, frozen=True):
    """What a number means. `unit` is a plural noun, `s`, `bytes`, `share` (0..1) or `nats`.
    `reduce`: of what a loss reports for each micro-batch, under its name without `train/`."""

    name: str
    unit: str
    help: str
    reduce: Reduction | None = None


class Registry:
    """The declared metrics, by name."""

    def __init__(self, metrics: Iterable[Metric] = (), *, strict: bool = False) -> None:
        self._strict = strict
        self._exact: dict[str, Metric] = {}
        self._patterns: list[tuple[re.Pattern[str], Metric]] = []
        self._reported: set[str] = set()
        for metric in metrics:
            self.declare(metric)

    def __iter__(self) -> Iterator[Metric]:
        yield from self._exact.values()

    def declare(self, metric: Metric) -> None:
        """Add a metric. Raises ValueError when its name is taken or has no known family."""
        if metric.name in self._exact:
            raise ValueError(f"metric {metric.name} is declared twice")
        if metric.name.partition("/")[0] not in _FAMILIES:
            raise ValueError(f"metric {metric.name}: its family must be one of {_FAMILIES}")
        self._exact[metric.name] = metric
        if "*" in metric.name:
            words = (re.escape(word) for word in metric.name.split("*"))
            self._patterns.append((re.compile("[^/]+".join(words)), metric))

    def find(self, name: str) -> Metric | None:
        """The declaration that covers `name`, or None."""
        if "*" not in name and name in self._exact:
            return self._exact[name]
        found = (m for pattern, m in reversed(self._patterns) if pattern.fullmatch(name))
        return next(found, None)

    def explain(self, metrics: Mapping[str, str]) -> None:
        """Declare what an Env counts, by its own names; one that the framework has keeps its
        meaning."""
        for name, words in metrics.items():
            for full in (f"rollout/{name}", f"eval/*/metric/{name}"):
                if full not in self._exact:
                    self.declare(Metric(full, "any", words))

    def check(self, names: Iterable[str]) -> None:
        """Notice names that nobody declared: raise ValueError if strict, else log each once."""
        unknown = [n for n in names if n not in self._reported and self.find(n) is None]
        if unknown and self._strict:
            raise ValueError(f"undeclared metrics {unknown}: add them to agentrl.telemetry.metrics")
        for name in unknown:
            self._reported.add(name)
            if name.startswith("rollout/"):
                continue
            logger.warning("metric %s is not declared: what it means is unknown", name)
