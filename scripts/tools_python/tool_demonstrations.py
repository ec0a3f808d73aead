"""Demonstrations for `tools-python`: problems of training, as dialogues of chat messages.

A *full* one calls the tool that the problem asks for, with the numbers of the question, and copies
what it says. A *sloppy* one leaves something out of the call, and believes what comes of it. A
*hasty* one calls nothing and answers with the answer of another problem of its kind. What the last
two teach is for RL to unlearn.
"""

import random
import re
from typing import Any, NamedTuple

from agentrl.envs.tools_python.env import asked
from agentrl.envs.tools_python.problems import draw
from agentrl.tools.calculator import evaluate, shown
from scripts.default_job.habit import Care

__all__ = ["CALLS", "NUMBER", "Call", "demonstrate"]

#: A number in the words of a question.
NUMBER = re.compile(r"\d+(?:\.\d+)?")
#: A program, around the calculation whose result's digits it adds.
_BEFORE, _AFTER = "print(sum(map(int, str(", "))))"


class Call(NamedTuple):
    """How a kind is solved: tool and argument, and templates of what it is given, right and sloppy;
    `{0}` is the first number of the question."""

    tool: str
    argument: str
    right: str
    sloppy: str


def _calculator(right: str, sloppy: str) -> Call:
    return Call("calculator", "expression", right, sloppy)


def _program(right: str, sloppy: str) -> Call:
    return Call("python", "code", f"{_BEFORE}{right}{_AFTER}", f"{_BEFORE}{sloppy}{_AFTER}")


#: The kinds that are demonstrated.
CALLS = {
    "expression": _calculator("({0} + {1}) * {2} - {3}", "{0} + {1} * {2} - {3}"),
    "shop": _calculator("{2} - {0} * {1}", "{0} * {1}"),
    "journey": _calculator("{0} * {1} + {0} * {2} / 2", "{0} * {1} + {0} * {2}"),
    "digits": _program("{0}**{1}", "{0}*{1}"),
}


def demonstrate(rng: random.Random, care: Care) -> list[dict[str, Any]]:
    """A dialogue about the next problem, as messages of OpenAI's chat API."""
    problem = draw(rng, held_out=False, kinds=tuple(CALLS))
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked(problem.question)}]
    if care is Care.HASTY:
        other = draw(rng, held_out=False, kinds=(problem.kind,))
        return [*messages, _answer(shown(other.answer))]
    call = CALLS[problem.kind]
    template = call.right if care is Care.FULL else call.sloppy
    given = template.format(*NUMBER.findall(problem.question))
    function = {"name": call.tool, "arguments": {call.argument: given}}
    result = _said(call.tool, given)
    messages.append({"role": "assistant", "tool_calls": [{"function": function}]})
    messages.append({"role": "tool", "content": result})
    return [*messages, _answer(result.strip())]


def _said(tool: str, given: str) -> str:
    """What the tool says to one of these calls; no program is run for it."""
    if tool == "calculator":
        return shown(evaluate(given))
    value = evaluate(given.removeprefix(_BEFORE).removesuffix(_AFTER))
    return f"{sum(map(int, str(value)))}\n"


def _answer(number: str) -> dict[str, Any]:
    return {"role": "assistant", "content": f"<answer> {number} </answer>"}
