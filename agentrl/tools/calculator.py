"""`calculator`: arithmetic on exact numbers. Nothing is evaluated but numbers and their signs.

    expression -> syntax tree, of which only arithmetic is known -> Fraction -> text

Integers and fractions are exact, and so are decimals as they are written: 0.1 + 0.2 is 0.3. What
would be larger than `MAX_BITS` is refused before it is computed.
"""

import ast
import decimal
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated

from msgspec import Meta

from agentrl.tools.tool import ToolError, tool

__all__ = ["MAX_BITS", "MAX_LENGTH", "calculator", "evaluate", "shown"]

#: Characters of an expression.
MAX_LENGTH = 200
#: Size of numerator or denominator of a result.
MAX_BITS = 4096
#: Digits of a result that has no end, such as 1/3.
DIGITS = 15

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@tool(parallel=True)
async def calculator(expression: Annotated[str, Meta(min_length=1, max_length=MAX_LENGTH)]) -> str:
    """Work out an arithmetic expression of numbers, + - * / // % ** and parentheses, exactly.

    Args:
        expression: what to work out, as in (17 + 4) * 2**10 / 3
    """
    return shown(evaluate(expression))


def evaluate(expression: str) -> Fraction:
    """The value of `expression`. Raises ToolError, in words for the model, where it has none."""
    if len(expression) > MAX_LENGTH:
        raise ToolError(f"an expression has at most {MAX_LENGTH} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        return _value(tree.body, expression)
    except ZeroDivisionError:
        raise ToolError("it divides by zero") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolError(f"{expression.strip()!r} is no arithmetic expression") from None


def shown(value: Fraction) -> str:
    """An integer as it is, anything else as a decimal number of up to `DIGITS` digits."""
    if value.denominator == 1:
        return str(value.numerator)
    with decimal.localcontext(decimal.Context(prec=DIGITS)):
        return str(decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator))


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            # as it was written: a float would have rounded it
            return _bounded(_literal(ast.get_source_segment(text.strip(), node) or ""))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand, text)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, text), _value(right, text))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            apply = _BINARY[type(op)]
            return _bounded(Fraction(apply(_value(left, text), _value(right, text))))
    raise ToolError(
        f"{ast.unparse(node)[:40]!r} is not known here: only numbers, + - * / // % ** and "
        "parentheses"
    )


def _literal(text: str) -> Fraction:
    exponent = text.lower().partition("e")[2]
    if len(exponent) > 5 or abs(int(exponent or "0")) > MAX_BITS:
        raise ToolError("the number is too large")
    return Fraction(text)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("an exponent must be an integer")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and base != 0 and size * abs(exponent) > 2 * MAX_BITS:
        raise ToolError(f"the result would have more than {_most_digits()} digits")
    if abs(base) == 1:
        exponent = exponent % 2
    return _bounded(Fraction(base ** int(exponent)))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError(f"the result would have more than {_most_digits()} digits")
    return value


def _most_digits() -> int:
    return math.floor(MAX_BITS * math.log10(2))
