"""Writes tasks of the desk, each with a dialogue about it, as `messages`.

In two of three dialogues the agent does what it is asked for. In the others it says so and does
nothing: which is the better way is left for reinforcement learning to find out.

    python examples/tau_bench/tasks.py build/tau_bench/tasks.jsonl
"""

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any, NamedTuple

from desk import RULES, Order

NUM_ROWS = 4096
CUSTOMERS = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gail", "Hugo")
THINGS = ("tea", "rice", "salt", "soap", "wool", "silk")
CITIES = ("Oslo", "Lima", "Cairo", "Rome", "Quito", "Delhi")
STATES = ("pending", "pending", "pending", "delivered")
GOODBYE = "Thank you. Is that all?"


class Wish(NamedTuple):
    """What a customer wants: in words, as a call with what it answers, and as a change."""

    words: str
    tool: str
    arguments: dict[str, str]
    result: str
    change: Order


def draw_orders(rng: random.Random) -> dict[str, dict[str, Order]]:
    """An order of each of three customers."""
    return {
        customer: {rng.choice(THINGS): {"city": rng.choice(CITIES), "state": rng.choice(STATES)}}
        for customer in rng.sample(CUSTOMERS, 3)
    }


def draw_wish(rng: random.Random, customer: str, thing: str, order: Order) -> Wish:
    """To cancel an order, or to have it sent elsewhere."""
    which = {"customer": customer, "thing": thing}
    if rng.random() < 0.5:
        change = {"state": "cancelled"}
        return Wish(f"cancel my {thing}", "cancel", which, f"{thing}: cancelled", change)
    city = rng.choice([each for each in CITIES if each != order["city"]])
    words, result = f"send my {thing} to {city}", f"{thing}: to {city}"
    return Wish(words, "send", which | {"city": city}, result, {"city": city})


def row(rng: random.Random) -> dict[str, Any]:
    """Orders, a customer with a wish about one of its own, and what becomes of them."""
    orders = draw_orders(rng)
    customer = rng.choice(list(orders))
    ((thing, order),) = orders[customer].items()
    wish = draw_wish(rng, customer, thing, order)
    wanted = copy.deepcopy(orders)
    if order["state"] == "pending":
        wanted[customer][thing] |= wish.change
    opening = f"I am {customer}. Please {wish.words}."
    doing = solved(customer, thing, order, wish)
    shown = rng.choice([doing, doing, [said("assistant", "Done.")]])
    ends = [said("user", GOODBYE), said("assistant", "Yes.")]
    return {
        "orders": orders,
        "wanted": wanted,
        "opening": opening,
        "script": [GOODBYE],
        "wish": f"What you want: {opening}",
        "messages": [said("system", RULES), said("user", opening), *shown, *ends],
    }


def solved(customer: str, thing: str, order: Order, wish: Wish) -> list[dict[str, Any]]:
    """Look the order up, and change it where it can be changed."""
    line = f"{thing}: {order['state']}, to {order['city']}"
    found = called("find", {"customer": customer}, line)
    if order["state"] != "pending":
        return [*found, said("assistant", "It is too late.")]
    return [*found, *called(wish.tool, wish.arguments, wish.result), said("assistant", "Done.")]


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def called(name: str, arguments: dict[str, str], result: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": arguments}
    calls = {"role": "assistant", "tool_calls": [{"function": function}]}
    return [calls, said("tool", result)]


if __name__ == "__main__":
    path, rng = Path(sys.argv[1]), random.Random(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row(rng))}\n" for _ in range(NUM_ROWS)))
