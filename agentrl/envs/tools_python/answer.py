"""The reward of `tools-python`: the number of the final answer is compared exactly.

A number is an integer (with or without commas between thousands), a decimal number or a fraction;
`0.5`, `.50` and `1/2` are one number. Anything else, a unit too, is none.
"""

import re
from fractions import Fraction

__all__ = ["final_number", "read_number"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
#: Digits of a number that is read.
_MOST = 200
_WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_NUMBER = re.compile(rf"[+-]?(?:(?:{_WHOLE})(?:\.[0-9]+)?|\.[0-9]+|[0-9]+/[0-9]+)")


def final_number(text: str) -> Fraction | None:
    """The number in the last complete `<answer> .. </answer>` of `text`."""
    found = _ANSWER.findall(text)
    return read_number(found[-1]) if found else None


def read_number(text: str) -> Fraction | None:
    """`text` as a number, or None where it is none."""
    text = text.strip()
    if len(text) > _MOST or not _NUMBER.fullmatch(text):
        return None
    try:
        return Fraction(text.replace(",", ""))
    except ZeroDivisionError:
        return None
