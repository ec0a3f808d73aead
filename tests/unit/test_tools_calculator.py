"""The calculator: exact, bounded, and of nothing but numbers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tools import ToolError
from agentrl.tools.calculator import MAX_BITS, calculator, evaluate, shown


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("(17 + 4) * 2**10 / 3", "7168"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2**-3", "0.125"),
        ("+-+5", "-5"),
        (" 1e3 + 1_000 ", "2000"),
        ("12345678901234567890.5 * 2", "24691357802469135781"),
        ("(-1)**10**30", "1"),
        ("(-1)**(10**30 + 1)", "-1"),
        ("0**10**30", "0"),
        ("(" * 99 + "1" + ")" * 99, "1"),
        ("1" * 200, "1" * 200),
    ],
)
def test_arithmetic_is_exact(expression: str, said: str) -> None:
    assert shown(evaluate(expression)) == said


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("9**9**9", "more than 1233 digits"),
        ("9**9**9**9**9", "more than 1233 digits"),
        ("10**1000 * 10**1000", "more than 1233 digits"),
        ("1.000001**99999", "more than 1233 digits"),
        ("1e999999999", "too large"),
        ("1e-99999", "too large"),
        ("1 / (2 - 2)", "divides by zero"),
        ("0**-1", "divides by zero"),
        ("5 % 0", "divides by zero"),
        ("2**0.5", "an exponent must be an integer"),
        ("", "no arithmetic expression"),
        ("2 +", "no arithmetic expression"),
        ("1; 2", "no arithmetic expression"),
        ("\ud800", "no arithmetic expression"),
        ("1\x00", "no arithmetic expression"),
        ("1" * 201, "at most 200 characters"),
        ("__import__('os').system('id')", "not known here"),
        ("(1).__class__", "not known here"),
        ("[x for x in (1,)]", "not known here"),
        ("'a' * 99", "not known here"),
        ("True + 1", "not known here"),
        ("1j", "not known here"),
        ("1 << 99", "not known here"),
        ("1 < 2", "not known here"),
        ("abs(3)", "not known here"),
        ("(lambda: 1)()", "not known here"),
    ],
)
def test_anything_else_is_told_to_the_model(expression: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        evaluate(expression)


@given(st.text("0123456789.+-*/%() e_", max_size=200))
def test_whatever_is_written_has_a_bounded_value_or_is_refused(expression: str) -> None:
    try:
        value = evaluate(expression)
    except ToolError:
        return
    assert isinstance(value, Fraction)
    assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS
    assert shown(value)


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(-9, 9))
def test_a_value_is_that_of_fractions(a: int, b: int, c: int) -> None:
    assert evaluate(f"{a} / {b} - ({c}) * 0.25") == Fraction(a, b) - Fraction(c, 4)


def test_the_model_reads_what_it_takes() -> None:
    assert calculator.spec.name == "calculator"
    assert calculator.spec.parameters["properties"]["expression"]["maxLength"] == 200
