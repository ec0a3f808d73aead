"""The reward of `tools-python`: the number of the final answer is compared exactly.

A number is an integer (with or without commas between thousands), a decimal number or a fraction;
`0.5`, `.50` and `1/2` are one number. Anything else, a unit too, is none.
"""

import re
from fractions import Fraction

from agentrl.envs.grading.enclosed import last_enclosed

__all__ = ["final_number", "read_number"]

#: Digits of a number that is read.
_MOST = 200
_WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_NUMBER = re.compile(rf"[+-]?(?:(?:{_WHOLE})(?:\.[0-9]+)?|\.[0-9]+|[0-9]+/[0-9]+)")


def final_number(text: str) -> Fraction | None:
    """The number in the last complete `<answer> .. </answer>` of `text`."""
    found = last_enclosed(text, "<answer>", "</answer>")
    return None if found is None else read_number(found)


def read_number(text: str) -> Fraction | None:
    """`text` as a number, or None where it is none."""
    text = text.strip()
    if len(text) > _MOST or not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None
