"""`tools-python`: its problems, its two splits and its reward."""

import math
import random
import re
from fractions import Fraction
from typing import Any

import pytest

from agentrl.envs.tools_python import ProblemSource, ToolsPythonEnv, eval_tasks
from agentrl.envs.tools_python.answer import final_number, read_number
from agentrl.envs.tools_python.problems import KINDS, NUM_EVAL, chosen, draw, is_held_out
from agentrl.errors import ConfigError

pytestmark = pytest.mark.anyio


async def test_a_task_depends_on_seed_and_number_alone() -> None:
    source = ProblemSource(3)
    tasks = source.tasks(5)
    assert await anext(tasks) == source.task(5) == ProblemSource(3).task(5)
    assert await anext(tasks) == source.task(6)
    assert source.task(5).row != ProblemSource(4).task(5).row
    assert await anext(ToolsPythonEnv.train_tasks({}, seed=3).tasks(0)) == source.task(0)


def test_no_training_task_is_one_of_evaluation() -> None:
    held_out = {task.row["question"] for task in ToolsPythonEnv.eval_tasks({})["heldout"]}
    assert len(held_out) == NUM_EVAL
    assert all(map(is_held_out, held_out))
    for seed in range(4):
        rows = [ProblemSource(seed).task(index).row for index in range(500)]
        assert not held_out.intersection(row["question"] for row in rows)
    assert eval_tasks() == eval_tasks()


def test_both_splits_hold_every_kind() -> None:
    rng = random.Random(0)
    for held_out in (False, True):
        assert {draw(rng, held_out=held_out).kind for _ in range(300)} == set(KINDS)


def solved(kind: str, question: str) -> Fraction:
    """The answer of a question, found from its words in another way than it was made."""
    numbers = [Fraction(found) for found in re.findall(r"\d+(?:\.\d+)?", question)]
    whole = list(map(int, numbers))
    match kind:
        case "expression":
            a, b, c, d = numbers
            return a * c + b * c - d
        case "quotient":
            a, b, c, d = numbers
            return (a * d + c * b) / (b * d)
        case "shop":
            price, count, paid = numbers
            return paid - sum([price] * int(count))
        case "journey":
            hours, slow, fast = numbers
            return hours * (slow + fast / 2)
        case "growth":
            start, daily, lost, years = numbers
            power = daily ** int(years)
            return start * power - lost * (power - 1) / (daily - 1)
        case "primes":
            low, high = whole
            sieve = [n > 1 for n in range(high + 1)]
            for n in range(2, high + 1):
                for multiple in range(2 * n, high + 1, n):
                    sieve[multiple] = False
            return Fraction(sum(sieve[low:]))
        case "digits":
            value, total = whole[0] ** whole[1], 0
            while value:
                value, digit = divmod(value, 10)
                total += digit
            return Fraction(total)
        case "multiples":
            _, most, one, other = whole
            both = sum_of(math.lcm(one, other), most)
            return Fraction(sum_of(one, most) + sum_of(other, most) - 2 * both)
    raise AssertionError(kind)


def sum_of(step: int, most: int) -> int:
    count = most // step
    return step * count * (count + 1) // 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_answers_are_right(kind: str) -> None:
    for seed in range(100):
        question, answer = KINDS[kind](random.Random(seed))
        assert answer == solved(kind, question), question


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("<answer> 42 </answer>", Fraction(42)),
        ("It is <answer>1</answer>, no, <answer>\n-7/3\n</answer>.", Fraction(-7, 3)),
        ("<answer>.50</answer>", Fraction(1, 2)),
        ("<answer>+1,234,567.5</answer>", Fraction("1234567.5")),
        ("<answer> 42", None),
        ("42", None),
        ("<answer></answer>", None),
        ("<answer> 42 euros </answer>", None),
        ("<answer> 40 + 2 </answer>", None),
        ("<answer> 1e3 </answer>", None),
        ("<answer> 1/0 </answer>", None),
        ("<answer> 12,34 </answer>", None),
        ("<answer> 1,234/5 </answer>", None),
        ("<answer> ٤٢ </answer>", None),
        ("<answer> nan </answer>", None),
        (f"<answer> {'9' * 201} </answer>", None),
        ("<answer> 42 </answer> <answer> none </answer>", None),
    ],
)
def test_the_number_of_the_last_answer_is_read(text: str, number: Fraction | None) -> None:
    assert final_number(text) == number


def test_a_decimal_that_was_rounded_is_not_the_fraction() -> None:
    assert read_number("0.333333") != read_number("1/3")


def test_only_the_kinds_that_are_asked_for_are_played() -> None:
    args = {"kinds": ["digits", "shop"]}
    ToolsPythonEnv(**args)
    source = ToolsPythonEnv.train_tasks(args, seed=3)
    assert isinstance(source, ProblemSource)
    for tasks in (ToolsPythonEnv.eval_tasks(args)["heldout"], list(map(source.task, range(60)))):
        assert {task.row["kind"] for task in tasks} == {"digits", "shop"}
    assert chosen(["digits", "shop", "digits"]) == ("shop", "digits")


@pytest.mark.parametrize("kinds", [[], "shop", 3, {"shop": 1}, [["shop"]], [None], ["shops"]])
def test_kinds_that_are_none_are_refused(kinds: Any) -> None:
    for use in (
        lambda: ToolsPythonEnv(kinds=kinds),
        lambda: ToolsPythonEnv.train_tasks({"kinds": kinds}, seed=0),
        lambda: ToolsPythonEnv.eval_tasks({"kinds": kinds}),
    ):
        with pytest.raises(ConfigError, match=r"tools-python: .* expression, quotient, shop"):
            use()


def test_a_mistyped_kind_is_told_the_right_one() -> None:
    with pytest.raises(ConfigError, match="there is no kind 'primse'; did you mean primes"):
        chosen(["primse"])
