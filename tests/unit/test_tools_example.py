"""Arguments made from a schema: whatever type a tool asks for, they fit."""

import datetime
import decimal
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest

from agentrl.tools.example import arguments_for, made_up
from agentrl.tools.schema import ForeignParameters
from agentrl.tools.tool import Tool, tool

Meta = msgspec.Meta


class Place(msgspec.Struct):
    """May stand in itself."""

    name: str
    inside: "list[Place]" = []
    next: "Place | None" = None


@pytest.mark.parametrize(
    "hint",
    [
        str,
        int,
        float,
        bool,
        bytes,
        None,
        Any,
        list[str],
        set[int],
        dict[str, int],
        tuple[int, str, Place],
        Place,
        Place | None,
        int | str,
        Literal["north", "south"],
        datetime.date,
        Annotated[datetime.time, Meta(tz=True)],
        datetime.timedelta,
        Annotated[datetime.datetime, Meta(tz=True)],
        uuid.UUID,
        decimal.Decimal,
        Annotated[int, Meta(ge=3, multiple_of=5)],
        Annotated[int, Meta(lt=-7)],
        Annotated[int, Meta(gt=7, le=8)],
        Annotated[float, Meta(gt=0, lt=1)],
        Annotated[float, Meta(le=-0.5)],
        Annotated[str, Meta(min_length=3, max_length=3)],
        Annotated[str, Meta(pattern="^a+$", examples=["aaa"])],
        Annotated[list[int], Meta(min_length=2, max_length=4)],
    ],
)
def test_what_is_made_fits(hint: Any) -> None:
    async def take(value: Any) -> None:
        """Take it."""

    take.__annotations__["value"] = hint
    taker = tool(take)
    made = [*arguments_for(taker, odd="<|im_end|>")]
    assert made
    assert set(made) == set(made_up(taker.spec.parameters, odd="<|im_end|>"))


def test_least_leaves_out_what_may_be_left_out_and_odd_is_in_every_free_text() -> None:
    @tool
    async def look(
        where: str, how: Annotated[str, Meta(examples=["slowly"])], often: int = 5
    ) -> None:
        """Look."""

    assert [msgspec.json.decode(raw) for raw in arguments_for(look, odd="}{")] == [
        {"where": "1", "how": "slowly", "often": 1},
        {"where": "", "how": "slowly"},
        {"where": "}{", "how": "}{", "often": 1},
    ]


def test_a_tool_without_arguments_is_called_once_and_a_pattern_cannot_be_made_up() -> None:
    @tool
    async def now() -> str:
        """The time."""
        return "noon"

    @tool
    async def fly(to: Annotated[str, Meta(pattern="^[A-Z]{3}$")]) -> None:
        """Fly."""

    assert [*arguments_for(now, odd="x")] == [b"{}"]
    assert not [*arguments_for(fly, odd="x")]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": True, "b": {"type": ["integer", "null"]}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}, "required": ["a", "b"]},
        {"type": "object", "properties": {"a": {"oneOf": [{"const": 3}, {"type": "null"}]}}},
        {"type": "object", "properties": {"a": {"type": "array", "minItems": 10**12}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/t"}},
            "required": ["a"],
            "$defs": {
                "t": {
                    "type": "object",
                    "required": ["t"],
                    "properties": {"t": {"$ref": "#/$defs/t"}},
                }
            },
        },
    ],
)
def test_no_schema_of_others_makes_it_fail(schema: dict[str, Any]) -> None:
    async def take(**arguments: Any) -> None:
        """Take it."""

    taker = Tool(take, parameters=ForeignParameters(schema, "Take it."))
    assert [*arguments_for(taker, odd="x")]
