"""Whatever bytes a model writes as arguments, a tool gets typed values or the model gets a word."""

from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from agentrl import Env, ToolCall, ToolError, tool
from agentrl.tools import ToolResult, run_call

pytestmark = pytest.mark.slow


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: float
    y: float = 0.0


class FuzzedEnv(Env):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    @tool
    async def typed(
        self,
        query: Annotated[str, Meta(min_length=1, max_length=20)],
        count: Annotated[int, Meta(ge=0, le=9)] = 3,
        mode: Literal["a", "b"] = "a",
        point: Point | None = None,
        numbers: Annotated[list[float], Meta(max_length=3)] = [],  # noqa: B006
    ) -> str:
        assert 1 <= len(query) <= 20
        assert 0 <= count <= 9
        assert mode in ("a", "b")
        assert point is None or isinstance(point.x, float)
        assert len(numbers) <= 3
        self.seen.append(query)
        return query

    @tool
    async def loose(self, anything: Any, many: dict[str, int | None] | None = None) -> str:
        self.seen.append(anything)
        return "ok"

    @tool
    async def nothing(self) -> str:
        self.seen.append(None)
        return "ok"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=25),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["query", "count", "mode", "point", "numbers", "anything", "x", "y"])
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=8,
)
LENGTHS = st.integers(1, 100_000)
raw_arguments = (
    st.binary(max_size=60)
    | json_values.map(msgspec.json.encode)
    | json_values.map(msgspec.json.encode).flatmap(
        lambda raw: st.integers(0, len(raw)).map(lambda cut: raw[:cut])
    )
    | LENGTHS.map(lambda n: b'{"anything": ' + b"[" * n)
    | LENGTHS.map(lambda n: b'{"anything": ' + b'{"a":' * n)
    | LENGTHS.map(lambda n: b'{"count": ' + b"7" * n + b"}")
    | st.binary(max_size=8).map(lambda raw: b'{"query": "' + raw + b'"}')
)


@settings(max_examples=1500, deadline=None)
@given(name=st.sampled_from(["typed", "loose", "nothing"]), raw=raw_arguments)
def test_arguments_decode_to_typed_values_or_raise_tool_error(name: str, raw: bytes) -> None:
    try:
        arguments = FuzzedEnv.tools[name].decode(raw)
    except ToolError:
        return
    assert isinstance(arguments, dict)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(["typed", "loose", "nothing", "rm"]), raw=raw_arguments)
def test_a_call_runs_with_typed_values_or_is_answered_with_an_error(name: str, raw: bytes) -> None:
    env = FuzzedEnv()

    async def call() -> ToolResult:
        return await run_call(env, ToolCall("call_0_0", name, raw), 5)

    result = anyio.run(call)
    assert result.is_error == (not env.seen)
    assert result.text.startswith("error: ") or env.seen
    assert len(result.text.encode("utf-8", "replace")) < 17_000
