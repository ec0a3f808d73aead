"""`@checks(id)`: a function that says whether a text keeps an instruction, found by its id.

A check is called with the text, and by name with the arguments that the row gives the instruction.
The ids and their meaning are those of IFEval (https://arxiv.org/abs/2311.07911) and IFBench
(https://arxiv.org/abs/2507.02833). One that asks for a trained model or a dictionary is not here
(`LACKING`): a row that asks for it is refused, with the reason.
"""

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.envs.grading.cell import RuleError
from agentrl.nearest import nearest

__all__ = ["CHECKS", "LACKING", "arguments", "checks", "compared", "is_kept"]

Check = Callable[..., bool]
CHECKS: dict[str, Check] = {}
#: Published instructions that have no check here, with what one would need.
LACKING = {
    "language:response_language": "a trained detector of languages",
    "change_case:english_capital": "a trained detector of languages",
    "change_case:english_lowercase": "a trained detector of languages",
    "words:odd_even_syllables": "a dictionary of syllables",
    "words:start_verb": "a trained tagger of parts of speech",
}

_RELATIONS = {"less than": operator.lt, "at least": operator.ge}


def checks(instruction: str) -> Callable[[Check], Check]:
    """Name the instruction that the function below checks."""

    def named(function: Check) -> Check:
        CHECKS[instruction] = function
        return function

    return named


def arguments(instruction: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the check, of what the row tells. Raises RuleError for an instruction that has no
    check here, or whose arguments are not there."""
    check = CHECKS.get(instruction)
    if check is None:
        raise RuleError(
            f"there is no check of the instruction {instruction!r}{_why(instruction)}; leave the "
            "row out"
        )
    parameters = list(inspect.signature(check).parameters.values())[1:]
    lacking = [p.name for p in parameters if p.default is p.empty and told.get(p.name) is None]
    if lacking:
        raise RuleError(f"the instruction {instruction} wants {', '.join(lacking)} in its kwargs")
    return {p.name: _whole(told[p.name]) for p in parameters if told.get(p.name) is not None}


def _why(instruction: str) -> str:
    if instruction in LACKING:
        return f", which needs {LACKING[instruction]}"
    return nearest(instruction, CHECKS)


def is_kept(instruction: str, text: str, told: Mapping[str, Any]) -> bool:
    """Whether the text keeps the instruction. Raises RuleError as `arguments` does, and for what
    they cannot be."""
    known = arguments(instruction, told)
    try:
        return bool(text.strip()) and CHECKS[instruction](text, **known)
    except (TypeError, ValueError) as error:
        raise RuleError(f"the instruction {instruction} cannot be read: {error}") from error


def _whole(value: Any) -> Any:
    """A count as the integer that it is: published rows have `5.0`."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def compared(number: int, relation: str, bound: float) -> bool:
    """`less than` or `at least`. Raises ValueError for another word."""
    if relation not in _RELATIONS:
        raise ValueError(f"the relation {relation!r} is none of {', '.join(_RELATIONS)}")
    return bool(_RELATIONS[relation](number, bound))
