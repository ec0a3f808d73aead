"""What a function of the user's says of the tokens of a sample: arrays of numbers, and masks, which
can only take tokens out. `fault` makes the error of what is no such answer.

Shape suffixes: N = the tokens that it speaks of, R = tokens of a response.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from agentrl.errors import HookError

__all__ = ["Fault", "narrowed", "numbers"]

Fault = Callable[[str], HookError]


def numbers(
    value: Any, num: int, name: str, fault: Fault, per: str = "token of the response"
) -> npt.NDArray[np.float64]:
    """`value`, a list, an array or a tensor, as `num` numbers, one for each `per`; `name` is what
    the error calls it. Raises what `fault` makes."""
    try:
        value = value.detach().cpu() if hasattr(value, "detach") else value
        found_N = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise fault(f"{name} holds no numbers ({error})") from None
    if found_N.shape != (num,):
        raise fault(
            f"{name} has the shape {found_N.shape}; {(num,)} is wanted, a number for each {per}"
        )
    return found_N


def narrowed(
    before_R: npt.NDArray[np.bool_], found_R: npt.NDArray[np.float64], name: str, fault: Fault
) -> npt.NDArray[np.bool_]:
    """The mask `found_R` of 0 and 1. Raises what `fault` makes for another number, and for a token
    that is 1 where it was not `before_R`."""
    odd_R = (found_R != 0) & (found_R != 1)
    if odd_R.any():
        raise fault(f"{name} holds {found_R[odd_R][0]:g}; 0 and 1 are wanted")
    mask_R: npt.NDArray[np.bool_] = found_R == 1
    if more := int((mask_R & ~before_R).sum()):
        raise fault(f"{name} brings in {more} tokens whose mask was 0")
    return mask_R
