"""`--rollout-data-postprocess-path`: a function of the user's looks at the rows that this rank is
about to train, and may change them.

It is called once for each iteration, after the advantages, with the `rollout_data` of
`slime_hooks`. Read back are `advantages`, `returns` where there is a critic, and `loss_masks`, from
which tokens can be taken: those that are taken out stay in the denominator of the loss. Keys that
it adds are its own. Refused are another change, a token that is brought in, an answer of another
shape, a number that is not finite where it is trained, and ranks of a replica that do not agree.

Shape suffixes: L = tokens of one trajectory, R = tokens of its response.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.rows import Row
from agentrl.algorithms.slime_hooks import response, rollout_data
from agentrl.errors import HookError
from agentrl.learner.answers import Fault, narrowed, numbers
from agentrl.learner.backend import Models
from agentrl.learner.hooks import DATA_POSTPROCESS, LearnerHooks

__all__ = ["postprocess"]

#: What of a row is read back, beside its mask.
_NUMBERS = ("advantages", "returns")


def postprocess(
    hooks: LearnerHooks, algorithm: Algorithm, rows: Sequence[Row], backend: Models
) -> None:
    """Have the function see the rows of this rank, and give them what it says. Collective. Raises
    HookError."""
    if DATA_POSTPROCESS not in hooks:
        return

    def data() -> dict[str, Any]:
        return rollout_data(algorithm.cfg, rows, _columns(algorithm.needs))

    given = data()

    def read() -> list[Any]:
        reader = _Reader(rows, given, lambda text: hooks.fault(DATA_POSTPROCESS, text))
        reader.refuse_other_changes(data())
        reader.write()
        return [backend.data_parallel_rank, _digest(rows)]

    ranks = hooks.call(DATA_POSTPROCESS, backend.all_gather, hooks.iteration, given, read=read)
    digests: dict[int, str] = {}
    for rank, (replica, digest) in enumerate(ranks):
        if digests.setdefault(replica, digest) != digest:
            raise HookError(
                f"{hooks.said(DATA_POSTPROCESS)} left other data on learner rank {rank} than on "
                "another rank that has the same samples: it must answer alike in every process"
            )


def _columns(needs: Needs) -> set[str]:
    """Those that the function is told of on a rank that has no row."""
    made = _NUMBERS if "values" in needs.passes else _NUMBERS[:1]
    return {*needs.passes, *(column.name for column in needs.columns), *made}


class _Reader:
    """What the function has left in `data`; `fault` makes the error."""

    def __init__(self, rows: Sequence[Row], data: dict[str, Any], fault: Fault) -> None:
        self._rows = rows
        self._data = data
        self._fault = fault

    def refuse_other_changes(self, before: dict[str, Any]) -> None:
        """Raise for a key that is not read back and has another value than `before`."""
        read = [key for key in (*_NUMBERS, "loss_masks") if key in before]
        for key in before.keys() - set(read):
            if not _same(before[key], self._data.get(key)):
                raise self._fault(
                    f'it changed rollout_data["{key}"], which is not read back; change '
                    f"{' or '.join(read)}"
                )

    def write(self) -> None:
        """Give the rows their masks, and their numbers where they are trained."""
        masks = self._arrays("loss_masks")
        given = {key: self._arrays(key) for key in _NUMBERS if self._has(key)}
        for place, row in enumerate(self._rows):
            span = response(row)
            mask_L = row.columns["mask"].copy()
            name = self._name("loss_masks", place)
            mask_L[span] = narrowed(mask_L[span], masks[place], name, self._fault)
            mask_L.setflags(write=False)
            row.columns["mask"] = mask_L
            for key, arrays in given.items():
                self._require_finite(key, place, arrays[place][mask_L[span]])
                column_L = row.columns[key].copy()
                column_L[span] = np.where(mask_L[span], arrays[place], column_L[span])
                row.columns[key] = column_L

    def _has(self, key: str) -> bool:
        return bool(self._rows) and key in self._rows[0].columns

    def _arrays(self, key: str) -> list[npt.NDArray[np.float64]]:
        found, num = self._data.get(key), len(self._rows)
        if not isinstance(found, (list, tuple)) or len(found) != num:
            raise self._fault(f'rollout_data["{key}"] is no list of {num} tensors, one a sample')
        return [self._array(key, place, value) for place, value in enumerate(found)]

    def _array(self, key: str, place: int, value: Any) -> npt.NDArray[np.float64]:
        span = response(self._rows[place])
        return numbers(value, span.stop - span.start, self._name(key, place), self._fault)

    def _require_finite(self, key: str, place: int, trained_K: npt.NDArray[np.float64]) -> None:
        if odd := int((~np.isfinite(trained_K)).sum()):
            raise self._fault(f"{odd} numbers of {self._name(key, place)} are not finite")

    def _name(self, key: str, place: int) -> str:
        episode = self._rows[place].trajectory.episode
        return f'rollout_data["{key}"][{place}] (episode {episode})'


def _same(before: Any, after: Any) -> bool:
    """Whether a list of tensors, or of numbers, is as it was."""
    if not isinstance(after, (list, tuple)) or len(after) != len(before):
        return False
    return all(_same_one(*pair) for pair in zip(before, after, strict=True))


def _same_one(before: Any, after: Any) -> bool:
    if not hasattr(before, "shape"):
        return bool(before == after)
    return getattr(after, "shape", None) == before.shape and bool((before == after).all())


def _digest(rows: Sequence[Row]) -> str:
    digest = blake2b(digest_size=16)
    for row in rows:
        for key in ("mask", *_NUMBERS):
            if key in row.columns:
                digest.update(row.columns[key].tobytes())
    return digest.hexdigest()
