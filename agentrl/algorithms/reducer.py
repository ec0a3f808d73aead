"""`--custom-pg-loss-reducer-function-path`: how the policy-gradient losses of a trajectory's tokens
become one, by a function of the user's in slime's signature.

    f(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)   -> reduce
    reduce(losses)                                                             -> a number

The number is divided as in slime: by the episodes of the step, or by its sampled tokens under
`--calculate-per-token-loss`, over all ranks. It is asked about one trajectory at a time, once for
each iteration, and what it makes of each token is that token's weight: a sum or a mean of them,
whatever it divides by. Refused: what is no weighted sum of the losses, and what is not the same for
two trajectories together as for one and the other, since it would depend on how they are packed.
Entropy and KL are averaged as without it.

Shape suffix: R = a response, from its first sampled token on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentrl.algorithms.rows import Row
from agentrl.algorithms.slime_hooks import response
from agentrl.config.run import RunConfig
from agentrl.errors import HookError
from agentrl.user_code import Kind, Signature, hook, load, place_in

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["REDUCERS", "Reducer", "load_reducer"]

#: -> for each row, the weight of each of its labels, before anything is shared.
Reducer = Callable[[RunConfig, Sequence[Row]], "list[npt.NDArray[np.float32]]"]

_PARAMETERS = ("total_lengths", "response_lengths", "loss_masks", "calculate_per_token_loss")


def _of_slime(function: Callable[..., Any]) -> Reducer:
    @functools.wraps(function)
    def weights(cfg: RunConfig, rows: Sequence[Row]) -> list[npt.NDArray[np.float32]]:
        found = []
        for place, row in enumerate(rows):
            (own_R,) = _weights(function, cfg, [row])
            if place:  # beside the one before it, which has been asked about alone
                _, again_R = _weights(function, cfg, rows[place - 1 : place + 1])
                if not np.allclose(own_R, again_R, rtol=1e-4):
                    raise HookError(
                        "what it makes of a trajectory is not the same beside another one: a step "
                        f"would depend on how its trajectories are packed: {place_in(function)}"
                    )
            weights_L = np.zeros(len(row.tokens_L), np.float32)
            weights_L[response(row)] = own_R
            found.append(np.where(row.columns["mask"], weights_L, np.float32(0)))
        return found

    return weights


def _weights(
    function: Callable[..., Any], cfg: RunConfig, rows: Sequence[Row]
) -> list[npt.NDArray[np.float32]]:
    """Of each row's response: the slope of the number by the loss of each token."""
    import torch

    spans = [response(row) for row in rows]
    masks = [
        torch.from_numpy(row.columns["mask"][span].astype("int32"))
        for row, span in zip(rows, spans, strict=True)
    ]
    lengths = [len(mask) for mask in masks]
    total = [len(row.tokens_L) for row in rows]
    with torch.enable_grad():
        reduce = function(total, lengths, masks, cfg.calculate_per_token_loss)
        if not callable(reduce):
            raise HookError(
                f"it returned a {type(reduce).__name__}; a function of the losses is wanted: "
                f"{place_in(function)}"
            )
        ones_R = torch.ones(sum(lengths), requires_grad=True)
        number, twice = reduce(ones_R * 1.0), reduce(ones_R.detach() * 2.0)
    if not isinstance(number, torch.Tensor) or number.numel() != 1:
        raise HookError(
            f"it made {number!r:.60} of the losses; one number is wanted: {place_in(function)}"
        )
    slope_R = torch.zeros_like(ones_R)
    if number.requires_grad:
        (slope_R,) = torch.autograd.grad(number, ones_R)
    if not _is_sum(slope_R, number.detach(), torch.as_tensor(twice)):
        raise HookError(
            f"its number is no weighted sum of the losses, or is not finite: {place_in(function)}"
        )
    return [part.numpy() for part in torch.split(slope_R, lengths)]


def _is_sum(slope_R: Tensor, of_ones: Tensor, of_twos: Tensor) -> bool:
    """Whether a number with this slope at losses of 1 is the sum of slope times loss."""
    import torch

    expected = slope_R.double().sum()
    found = torch.stack([of_ones.reshape(()).double(), of_twos.reshape(()).double() / 2])
    return bool(torch.isfinite(slope_R).all()) and bool(
        torch.allclose(found, expected.expand(2), rtol=1e-4, atol=1e-6)
    )


REDUCERS: Kind[Reducer] = hook(
    "reducer(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)",
    [Signature(_PARAMETERS, _of_slime, is_slimes=True)],
    group="agentrl.reducers",
    noun="reducer",
    flag="--custom-pg-loss-reducer-function-path",
    builtin={},
)


def load_reducer(cfg: RunConfig) -> Reducer | None:
    """The one that the flag names. Raises ConfigError; what it makes of losses raises HookError
    where that is no weighted sum."""
    path = cfg.custom_pg_loss_reducer_function_path
    if path is None or cfg.loss_type != "policy_loss" or cfg.loss_length is not None:
        return None
    return load(REDUCERS, path)
