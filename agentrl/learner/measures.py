"""What micro-batches, replicas and steps measure becomes one number for each metric.

A loss reports tensors by metric name without `train/`; how reports are joined is what the metric
declares (`agentrl.telemetry.metrics`):

    sum     x              added over micro-batches and replicas; the mean over steps
    mean    total, n       both added; total / n
    max     x              the largest of all
    ess     r, r^2, n      sums of importance ratios, added; their effective sample share, of
                           `MIN_SAMPLES` or more

A measure is the tuple of these numbers. Pure, and in the order of the reports, so that sums do not
depend on timing.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import islice

import torch
from torch import Tensor

from agentrl.algorithms.ratios import effective_sample_share
from agentrl.errors import DataError
from agentrl.telemetry.metrics import REGISTRY, Metric

__all__ = ["MIN_SAMPLES", "Measure", "Measures", "joined", "measured", "value_of"]

Measure = tuple[float, ...]
Measures = dict[str, Measure]

#: Ratios of which an effective sample share says something: that of n is never below 1 / n, and of
#: one is 1 however old it is.
MIN_SAMPLES = 8

_WIDTHS = {"sum": 1, "mean": 2, "max": 1, "ess": 3}


def measured(report: Mapping[str, Tensor]) -> Measures:
    """The numbers of one report, without largest ones of nothing (-inf). Raises DataError where a
    metric wants others than were given."""
    measures = _read(report)
    for name, measure in list(measures.items()):
        known, metric = REGISTRY.find(f"train/{name}"), _declared(name)
        if known is not None and metric is None:
            raise DataError(
                f"the loss reports {name}, and train/{name} is measured by the learner: choose "
                "another name"
            )
        if metric is not None and len(measure) != _WIDTHS[str(metric.reduce)]:
            raise DataError(
                f"the loss reports {len(measure)} numbers for train/{name}, whose reduction "
                f"{metric.reduce} is of {_WIDTHS[str(metric.reduce)]}"
            )
        if metric is not None and metric.reduce == "max" and measure == (-math.inf,):
            del measures[name]
    return measures


def _read(report: Mapping[str, Tensor]) -> Measures:
    """A report on the host. Tensors of one kind are copied at once: a copy waits for its device."""
    flat = {name: tensor.detach().flatten() for name, tensor in report.items()}
    alike: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, tensor in flat.items():
        alike.setdefault((tensor.device, tensor.dtype), []).append(name)
    found: dict[str, Measure] = {}
    for names in alike.values():
        numbers = iter(torch.cat([flat[name] for name in names]).tolist())
        found |= {name: tuple(islice(numbers, len(flat[name]))) for name in names}
    return {name: found[name] for name in report}


def joined(parts: Iterable[Mapping[str, Measure]]) -> Measures:
    """One measure of each name: of micro-batches and replicas, or of steps."""
    found: Measures = {}
    for part in parts:
        for name, new in part.items():
            found[name] = _join(name, found[name], new) if name in found else tuple(new)
    return found


def value_of(name: str, measure: Measure, num_steps: int) -> float | None:
    """The metric's value over `num_steps` joined steps; None where nothing was measured, or for an
    effective sample share too little."""
    metric = _declared(name)
    if metric is not None and metric.reduce == "max":
        return measure[0]
    if metric is not None and metric.reduce == "ess":
        total, squared, num = measure
        return effective_sample_share(num, total, squared) if num >= MIN_SAMPLES else None
    total, num = measure if len(measure) == 2 else (measure[0], num_steps)
    return total / num if num else None


def _join(name: str, old: Measure, new: Measure) -> Measure:
    if len(old) != len(new):
        raise DataError(f"the loss reports {len(old)} numbers for {name}, then {len(new)}")
    metric = _declared(name)
    if metric is not None and metric.reduce == "max":
        return new if new[0] > old[0] or math.isnan(new[0]) else old
    return tuple(a + b for a, b in zip(old, new, strict=True))


def _declared(name: str) -> Metric | None:
    metric = REGISTRY.find(f"train/{name}")
    return metric if metric is not None and metric.reduce is not None else None
