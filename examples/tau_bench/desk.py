"""The service desk of a shop, in the manner of tau-bench: https://arxiv.org/abs/2406.12045.

    customer  <-- words -->  agent  -- tools -->  orders

The agent talks with a customer and changes orders with its tools. When the customer has nothing
left to say, the reward is 1 if the orders are what they ought to be, and else 0: words earn
nothing, and an order that was changed without need costs all.
"""

import copy
from typing import Any

from customers import Customer, Scripted, Served

from agentrl import AssistantTurn, Env, Message, Step, ToolError, tool

Order = dict[str, str]

RULES = (
    "You serve customers of a shop. Find an order before you change it. Change what the customer "
    "asks for and nothing else. Only pending orders can be changed; where one is not, say so."
)


class Desk(Env):
    """A row holds `orders` by customer and thing, those that are `wanted` in the end, and the
    customer: its `opening`, the `script` of what it says after that, and its `wish`, for a model
    that plays it.

    `customer` is the address of such a model, `http://HOST:PORT/v1`, and `model` its name there;
    without an address the customer keeps to the script.
    """

    reward_reads_text_only = False  # it reads the orders
    metrics = {"customer_turns": "Answers of the customer in an episode"}

    def __init__(self, *, customer: str = "", model: str = "default") -> None:
        super().__init__()
        self._url, self._model = customer, model

    async def reset(self, *, seed: int, task: dict[str, Any]) -> list[Message]:
        self.orders: dict[str, dict[str, Order]] = copy.deepcopy(task["orders"])
        self._wanted = task["wanted"]
        self._customer: Customer = Scripted(task["script"])
        if self._url:
            self._customer = Served(self._url, self._model, task["wish"], task["opening"])
        return [Message.system(RULES), Message.user(task["opening"])]

    @tool
    async def find(self, customer: str) -> str:
        """Find the orders of a customer.

        Args:
            customer: the name
        """
        orders = self.orders.get(customer, {})
        found = [f"{thing}: {o['state']}, to {o['city']}" for thing, o in orders.items()]
        return "\n".join(found) or "no order"

    @tool
    async def cancel(self, customer: str, thing: str) -> str:
        """Cancel a pending order.

        Args:
            customer: the name
            thing: what was ordered
        """
        self._pending(customer, thing)["state"] = "cancelled"
        return f"{thing}: cancelled"

    @tool
    async def send(self, customer: str, thing: str, city: str) -> str:
        """Send a pending order to another city.

        Args:
            customer: the name
            thing: what was ordered
            city: where it shall go
        """
        self._pending(customer, thing)["city"] = city
        return f"{thing}: to {city}"

    def _pending(self, customer: str, thing: str) -> Order:
        order = self.orders.get(customer, {}).get(thing)
        if order is None:
            raise ToolError(f"{customer} has ordered no {thing}")
        if order["state"] != "pending":
            raise ToolError(f"it is {order['state']}")
        return order

    async def step(self, turn: AssistantTurn) -> Step:
        """Calls are run; words are for the customer."""
        if turn.tool_calls or turn.parse_error is not None:
            return await super().step(turn)
        said = await self._customer.answer(turn.text)
        if said is None:
            return Step(reward=float(self.orders == self._wanted), terminated=True)
        return Step(messages=[Message.user(said)], metrics={"customer_turns": 1.0})
