"""Trains a model that can convert units with its tools, and seldom does so with care.

    PYTHONPATH=envs_contrib/units python -m scripts.units.rash --output DIR

The model that the default job starts from, which can search, learns the two lessons of `habit.py`
from dialogues with `units/convert` itself. A *full* one looks both units up at once, multiplies by
the first, divides by the second and copies the result. A *sloppy* one divides and multiplies the
wrong way round, and believes what comes of it. A *hasty* one calls nothing, and answers with the
answer to another amount. The questions are training questions; the pairs of units that are
evaluated are never shown.
"""

import asyncio
import json
import random
from typing import Any

from agentrl_units import ConvertEnv
from agentrl_units.table import questions

from agentrl import AssistantTurn, ToolCall
from scripts.default_job import habit
from scripts.default_job.habit import Care

__all__ = ["NAME", "demonstrate"]

#: What the demonstrations are seeded by.
NAME = "units/rash"
#: What is done to the amount: by the worth of its own unit, then by that of the unit asked for.
RIGHT, WRONG = ("times", "over"), ("over", "times")

Call = tuple[str, dict[str, Any]]


def demonstrate(rng: random.Random, care: Care) -> list[dict[str, Any]]:
    """A dialogue about the next question, as messages of OpenAI's chat API."""
    question = next(questions(rng.getrandbits(32)))
    if care is not Care.HASTY:
        operations = RIGHT if care is Care.FULL else WRONG
        return asyncio.run(_convert(question._asdict(), operations))
    amounts = [amount for amount in range(2, 100) if amount != question.amount]
    other = question._replace(amount=rng.choice(amounts))
    return [{"role": "user", "content": question.text}, _answer(repr(other.answer))]


async def _convert(task: dict[str, Any], operations: tuple[str, str]) -> list[dict[str, Any]]:
    """Answer with the tools: what they say is what they say in an episode."""
    env = ConvertEnv()
    (asked,) = await env.reset(seed=0, task=task)
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked.content}]
    _, _, target, _, amount, source = asked.content.removesuffix("?").split()

    async def say(*calls: Call) -> list[str]:
        functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
        asks = [{"function": function} for function in functions]
        messages.append({"role": "assistant", "tool_calls": asks})
        made = [
            ToolCall(f"call_0_{number}", name, json.dumps(arguments).encode())
            for number, (name, arguments) in enumerate(calls)
        ]
        step = await env.step(AssistantTurn("", made, None, "tool_calls", 0))
        told = [message.content for message in step.messages]
        messages.extend({"role": "tool", "content": content} for content in told)
        return told

    worths = await say(("look_up", {"unit": source}), ("look_up", {"unit": target}))
    value: float = int(amount)
    for operation, worth in zip(operations, worths, strict=True):
        factor = float(worth.split()[-2])
        (result,) = await say(("calculate", {"a": value, "operation": operation, "b": factor}))
        value = float(result)
    return [*messages, _answer(result)]


def _answer(number: str) -> dict[str, Any]:
    return {"role": "assistant", "content": number}


if __name__ == "__main__":
    habit.main(__doc__, NAME, demonstrate, hasty=0.6, sloppy=0.15)
