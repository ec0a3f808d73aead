r"""Whether two answers mean the same: by their spelling, or by algebra.

The rule is that of DeepScaleR's checker (https://github.com/agentica-project/rllm), which slime's
`math` and `deepscaler` decide by: both are spelt alike (no units, no dollars, LaTeX as text), then
compared part by part of a tuple; a fraction or an integer has to be written as the label is, and of
anything else the difference has to simplify to 0. An answer with more than two letters, or with
large powers, is no algebra.

`sympy` evaluates what it parses. So a text is evaluated only where it parses to numbers, names,
arithmetic and calls: whatever else Python could read of it is no expression. How long it may take
is for the process to say that it runs in.
"""

import ast
import re
from typing import Any

from agentrl.envs.grading.latex import plain_text

__all__ = ["equal"]

_ENCLOSED = re.compile(r"^\\text\{(.+?)\}$")
_UNITS = [
    "degree",
    "cm",
    "centimeter",
    "meter",
    "mile",
    "second",
    "minute",
    "hour",
    "day",
    "week",
    "month",
    "year",
    "foot",
    "feet",
    "inch",
    "yard",
]
_UNIT = [re.compile(rf"{unit}(es)?(s)? *(\^[0-9]+)?") for unit in _UNITS]
_SPELLINGS = (
    *(("\\%", "%"), ("\\$", "$"), ("$", ""), ("%", ""), (" or ", " , "), (" and ", " , ")),
    *(("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12")),
)
_CHARACTERS = (("√", "sqrt"), ("π", "pi"), ("∞", "inf"), ("∪", "U"), ("·", "*"), ("×", "*"))
_THOUSANDS = re.compile(r"(\d)(,)(\d\d\d)($|\D)")
_FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")
_BRACKETS = "()[]"
#: Powers that are not evaluated: of groups, of powers, of two digits and more.
_POWERS = re.compile(r"\^\{|\^\(|\^[0-9]+\^|\^[0-9][0-9]+")
#: What an expression may be made of once it is parsed.
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Call, ast.Name, ast.Constant, ast.Load),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.FloorDiv, ast.USub, ast.UAdd),
    *(ast.Tuple, ast.Compare, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq),
)


def equal(answer: str, label: str) -> bool:
    """Whether the answer means what the label means."""
    wanted, given = _spelt(label), _spelt(answer)
    if wanted == given:
        return True
    if not given:
        return False
    wanted_parts, given_parts = _parts(wanted), _parts(given)
    if len(wanted_parts) > 1 and (wanted[0], wanted[-1]) != (given[0], given[-1]):
        return False
    if len(wanted_parts) != len(given_parts):
        return False
    return all(map(_equal_parts, wanted_parts, given_parts))


def _equal_parts(wanted: str, given: str) -> bool:
    if _FRACTION.search(wanted) and _FRACTION.search(given):
        return wanted == given
    if (_as_integer(wanted) is None) != (_as_integer(given) is None):
        return False
    return _difference_is_zero(wanted, given)


def _spelt(text: str) -> str:
    if enclosed := _ENCLOSED.search(text):
        text = enclosed[1]
    for old, new in _SPELLINGS:
        text = text.replace(old, new)
    for unit in _UNIT:
        text = unit.sub("", text)
    text = re.sub(r"\^ *\\circ", "", text)
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = re.sub(r",\\! *", "", text)
    number = _near_integer(text)
    text = text if number is None else str(round(number))
    if "\\" in text:
        text = _printed(text)
    text = re.sub("- *", "-", text)
    text = re.sub("([0-9]) +([0-9])", r"\1+\2", text)  # 7 3/4 is 7+3/4
    text = re.sub("[ {}]", "", text).lower()
    integer = _as_integer(text)
    return text if integer is None else str(integer)


def _printed(latex: str) -> str:
    source = latex.replace("\\tfrac", "\\frac").replace("\\dfrac", "\\frac")
    text = plain_text(source.replace("\\frac", " \\frac"))
    if text is None:
        return latex
    for old, new in _CHARACTERS:
        text = text.replace(old, new)
    return text.strip()


def _near_integer(text: str) -> float | None:
    """The number, where it is one and as good as an integer."""
    try:
        number = float(text)
        return number if abs(number - round(number)) <= 1e-7 else None
    except (ValueError, OverflowError):
        return None


def _as_integer(text: str) -> int | None:
    """The integer that the text is, commas of thousands aside; None where it is none."""
    if _near_integer(_without_thousands(text)) is None:
        return None
    try:
        return int(float(text.replace(",", "")))
    except ValueError:
        return None


def _without_thousands(text: str) -> str:
    while (shorter := _THOUSANDS.sub(r"\1\3\4", text)) != text:
        text = shorter
    return text


def _parts(text: str) -> list[str]:
    """The elements of a tuple or interval; else the text alone."""
    text = _without_thousands(text)
    if not text:
        return []
    inner = text[1:-1]
    is_tuple = len(text) > 2 and text[0] in _BRACKETS and text[-1] in _BRACKETS
    if is_tuple and not any(bracket in inner for bracket in _BRACKETS):
        return [part.strip() for part in inner.split(",")]
    return [text]


def _difference_is_zero(wanted: str, given: str) -> bool:
    difference = f"({wanted})-({given})"
    letters = {
        each for each in difference.replace("sqrt", "").replace("frac", "") if each.isalpha()
    }
    if len(letters) > 2 or _POWERS.search(difference):
        return False
    import sympy

    try:
        return bool(sympy.simplify(_evaluated(difference.replace("^", "**"))) == 0)
    # sympy raises anything at all for what it cannot read or simplify
    except Exception:
        return False


def _evaluated(text: str) -> Any:
    """The expression as sympy has it. Raises ValueError for what is no arithmetic."""
    import sympy
    from sympy.parsing import sympy_parser as parser

    rules = (*parser.standard_transformations, parser.implicit_multiplication_application)
    names = {name: value for name, value in vars(sympy).items() if not name.startswith("_")}
    names["__builtins__"] = {}
    local: dict[str, Any] = {}
    code = parser.stringify_expr(text, local, names, rules)
    tree = ast.parse(code.strip(), mode="eval")
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC):
            raise ValueError(f"{type(node).__name__} is no arithmetic")
    return eval(compile(tree, "<answer>", "eval"), names, local)  # noqa: S307 - arithmetic alone
