"""`--custom-advantage-function-path`: a function of the user's gives the tokens of a replica's rows
their advantages, in place of the estimator.

    advantages(rows)         -> for each row, a number for each label; `rows.Row`
    f(args, rollout_data)    -> slime's, see `slime_hooks`

It is called once for each iteration, after the passes. A row has its columns, of which `prox` are
the log-probabilities at the start of the iteration (but under `--use-rollout-logprobs`), and
`credit`, what the estimator says of its episode. What it gives is then as any advantages are:
`--use-opd` takes from it, and `--normalize-advantages` is applied. Every episode is computed,
whatever it earned.

Shape suffix: L = tokens of one trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from agentrl.algorithms import slime_hooks
from agentrl.algorithms.base import Algorithm, Needs
from agentrl.algorithms.custom import named_as, without_flags
from agentrl.algorithms.normalization import Total
from agentrl.algorithms.rows import Credit, Row
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.types import GroupRows
from agentrl.user_code import Kind, Signature, hook, place_in

__all__ = ["ADVANTAGES", "with_advantages"]

_Function = Callable[[RunConfig, Sequence[Row]], Any]


ADVANTAGES: Kind[_Function] = hook(
    "advantages(rows)",
    [
        Signature(("rows",), without_flags),
        Signature(("args", "rollout_data"), slime_hooks.advantages, is_slimes=True),
    ],
    group="agentrl.advantages",
    noun="advantage function",
    flag="--custom-advantage-function-path",
    builtin={},
)


def with_advantages(estimator: type[Algorithm], function: _Function) -> type[Algorithm]:
    """The estimator, its objective and its state, with the advantages of the function."""

    class CustomAdvantages(estimator):  # type: ignore[misc, valid-type]
        needs: Needs
        reward_levels = estimator.reward_levels

        def __init__(self, cfg: RunConfig, args: Any) -> None:
            super().__init__(cfg, args)
            passes = self.needs.passes | ({"prox"} if self.needs.later_prox else set())
            self.needs = msgspec.structs.replace(
                self.needs, passes=passes, min_group=1, min_group_advice=""
            )

        def credit(self, group: GroupRows) -> Sequence[Credit]:
            return [Credit(credit.value) for credit in super().credit(group)]

        def teaches(self, reward: float) -> bool:
            return True

        def advantages(self, rows: Sequence[Row], total: Total) -> None:
            given = zip(rows, _given(function, self.cfg, rows), strict=True)
            self._tokens = {row.trajectory.payload: found_L for row, found_L in given}
            Algorithm.advantages(self, rows, total)

        def token_advantages(self, row: Row) -> npt.NDArray[np.float32]:
            return self._tokens[row.trajectory.payload]

    return named_as(estimator, CustomAdvantages)


def _given(
    function: _Function, cfg: RunConfig, rows: Sequence[Row]
) -> list[npt.NDArray[np.float32]]:
    """For each row, a number for each label; 0 where it is not trained. Raises HookError."""
    if not rows:
        return []
    found = function(cfg, rows)
    if not isinstance(found, (list, tuple)) or len(found) != len(rows):
        raise HookError(
            f"the advantages are no list of {len(rows)} arrays, one for each row: "
            f"{place_in(function)}"
        )
    return [_checked(row, each, function) for row, each in zip(rows, found, strict=True)]


def _checked(row: Row, found: Any, function: _Function) -> npt.NDArray[np.float32]:
    trained_L = row.columns["mask"]
    try:
        found_L = np.asarray(found, dtype=np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise HookError(f"the advantages are no numbers ({error}): {place_in(function)}") from None
    if found_L.shape != trained_L.shape:
        raise HookError(
            f"the advantages of episode {row.trajectory.episode} have the shape {found_L.shape}; a "
            f"number is wanted for each of its {len(trained_L)} labels: {place_in(function)}"
        )
    if odd := int((~np.isfinite(found_L[trained_L])).sum()):
        raise HookError(
            f"{odd} of the advantages of episode {row.trajectory.episode} are not finite: "
            f"{place_in(function)}"
        )
    return np.where(trained_L, found_L, np.float32(0))
