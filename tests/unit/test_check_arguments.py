"""Arguments made from a schema: whatever type a tool asks for, they fit."""

import datetime
import decimal
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.envs.check.arguments import arguments_for, made_up, never_given
from agentrl.tools.schema import ForeignParameters
from agentrl.tools.tool import Tool, tool

Meta = msgspec.Meta


class Place(msgspec.Struct):
    """May stand in itself."""

    name: str
    inside: "list[Place]" = []
    next: "Place | None" = None


class Number(msgspec.Struct, tag=True):
    """A leaf."""

    value: int


class Sum(msgspec.Struct, tag=True):
    """A tree that may go on for ever."""

    left: "Expression"
    right: "Expression"


Expression = Sum | Number


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
        datetime.datetime,
        datetime.time,
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
        Annotated[list[int], Meta(min_length=200)],
        Annotated[dict[str, int], Meta(min_length=2)],
        Annotated[bytes, Meta(min_length=7)],
        "Expression",
    ],
)
def test_what_is_made_fits(hint: Any) -> None:
    async def take(value: Any) -> None:
        """Take it."""

    take.__annotations__["value"] = hint
    taker = tool(take)
    assert arguments_for(taker, odd="<|im_end|>")
    assert never_given(taker) == []


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

    assert arguments_for(now, odd="x") == [b"{}"]
    assert arguments_for(fly, odd="x") == []
    assert never_given(fly) == ["to"]


def test_what_does_not_fit_and_may_be_left_out_keeps_nothing_else_from_being_tried() -> None:
    @tool
    async def fly(n: int = 0, to: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "OSL") -> None:
        """Fly."""

    calls = [msgspec.json.decode(raw) for raw in arguments_for(fly, odd="x")]
    assert {"n": 1} in calls
    assert never_given(fly) == ["to"]


def test_what_a_schema_inherits_is_given_too() -> None:
    schema = {
        "$defs": {"base": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"b": {"type": ["null", "string"]}},
    }
    assert msgspec.json.decode(made_up(schema)) == {"a": 1, "b": "1"}


ODD_VALUES: list[Any] = [True, None, [], {}, "x", 3.0, -1, 10**400, ["\ud800"], [None], {"a": 1}]
KEYWORDS = [
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "contentEncoding", "default", "enum",
    "examples", "exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maxLength",
    "maximum", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "oneOf",
    "pattern", "prefixItems", "properties", "required", "type",
]  # fmt: skip
TYPES = ["string", "integer", "number", "boolean", "null", "object", "array"]
REFERENCES = ["#", "#/properties/a", "#/nowhere", "elsewhere"]
schemas = st.recursive(
    st.booleans() | st.sampled_from(ODD_VALUES),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYWORDS),
        inner
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
        | st.sampled_from([*TYPES, *REFERENCES]),
        max_size=5,
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("ab"), schemas, max_size=2), schemas)
def test_no_schema_of_others_makes_it_fail(properties: dict[str, Any], more: Any) -> None:
    async def take(**arguments: Any) -> None:
        """Take it."""

    rest = more if isinstance(more, dict) else {}
    schema = {**rest, "type": "object", "properties": properties}
    taker = Tool(take, parameters=ForeignParameters(schema, "Take it."))
    for raw in [*arguments_for(taker, odd="x"), made_up(schema)]:
        assert isinstance(msgspec.json.decode(raw), dict)
    assert {name[0] for name in never_given(taker)} <= {"a", "b"}


def test_a_schema_that_branches_for_ever_is_given_up_soon() -> None:
    tree = {"$ref": "#/$defs/t"}
    of_four = {"type": "object", "properties": dict.fromkeys("abcd", tree), "required": [*"abcd"]}
    schema = {
        "type": "object",
        "properties": {"x": tree},
        "required": ["x"],
        "$defs": {"t": of_four},
    }
    taker = Tool(_take, parameters=ForeignParameters(schema, "Take it."))
    assert arguments_for(taker, odd="x") == []
    assert never_given(taker) == ["x"]


async def _take(**arguments: Any) -> None:
    """Take it."""
