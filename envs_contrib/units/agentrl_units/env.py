"""`units/convert`: how many metres are 12 miles? A table knows the units, a calculator reckons.

The reward is 1 when the last number of the final turn is right to one part in a thousand.
"""

import difflib
import math
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal

from agentrl import Env, Message, Task, ToolError, tool
from agentrl_units.table import UNITS, Question, eval_questions, find, questions

__all__ = ["ConvertEnv"]

_NUMBER = re.compile(r"[-+]?[0-9][0-9,]*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?")


class Questions:
    """Training tasks without end."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def tasks(self, cursor: int = 0) -> AsyncIterator[Task]:
        """Tasks from number `cursor` on."""
        for number, question in enumerate(questions(self._seed, cursor), start=cursor):
            yield Task(f"units/train/{self._seed}/{number}", question._asdict())


class ConvertEnv(Env):
    """One question. `--env-args` may set `tolerance`, the relative error of a right answer."""

    reward_reads_text_only = True

    def __init__(self, *, tolerance: float = 1e-3) -> None:
        super().__init__()
        if not 0 < tolerance < 1:
            raise ValueError(f"tolerance is {tolerance}; it must lie between 0 and 1")
        self._tolerance = tolerance
        self._answer = math.nan

    @classmethod
    def train_tasks(cls, args: Mapping[str, Any], *, seed: int) -> Questions:
        """Endless questions."""
        del args
        return Questions(seed)

    @classmethod
    def eval_tasks(cls, args: Mapping[str, Any]) -> dict[str, list[Task]]:
        """Questions about pairs of units that are in no training question."""
        del args
        found = enumerate(eval_questions())
        return {"pairs": [Task(f"units/pairs/{number}", q._asdict()) for number, q in found]}

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        del seed
        question = Question(**task)
        self._answer = question.answer
        return [Message.user(question.text)]

    @tool(parallel=True)
    async def look_up(self, unit: str) -> str:
        """Tell what a unit is worth.

        Args:
            unit: its name, as in "mile"
        """
        found = find(unit)
        if found is None:
            near = difflib.get_close_matches(unit.lower(), [known.name for known in UNITS])
            raise ToolError(
                f"no unit is called that{'; did you mean ' if near else ''}{' or '.join(near)}"
            )
        return f"1 {found.name} is {float(found.factor)!r} {found.base}"

    @tool(parallel=True)
    async def calculate(self, a: float, operation: Literal["times", "over"], b: float) -> float:
        """Multiply or divide two numbers.

        Args:
            a: the first number
            operation: "times", or "over" for a division
            b: the second number
        """
        if operation == "over" and b == 0:
            raise ToolError("nothing can be divided by 0")
        result = a * b if operation == "times" else a / b
        if not math.isfinite(result):
            raise ToolError("the result is too large")
        return result

    async def score(self, text: str) -> float:
        numbers = _NUMBER.findall(text)
        if not numbers:
            return 0.0
        said = float(numbers[-1].replace(",", ""))
        return float(math.isclose(said, self._answer, rel_tol=self._tolerance))
