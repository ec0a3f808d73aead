import threading
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest
from msgspec import Meta

from agentrl.errors import EnvError, PeerLostError
from agentrl.tokens import ToolCall
from agentrl.tools import Tool, ToolError, ToolResult, run_call, tool
from agentrl.tools.tool import collect_tools

pytestmark = pytest.mark.anyio


class Order(StrEnum):
    NEW = "new"
    OLD = "old"


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """Narrow the search."""

    language: str = "en"


class Library:
    """Something with tools; not an Env, to show that none is needed."""

    tools: Mapping[str, Tool[Any]] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        cls.tools = collect_tools(cls)


class Shelf(Library):
    @tool(timeout_s=5)
    async def search(
        self,
        query: str,
        top_k: Annotated[int, Meta(ge=1, le=10)] = 3,
        order: Order = Order.NEW,
        filters: list[Filter] = [],  # noqa: B006  the schema must take mutable defaults
    ) -> list[str]:
        """Search the shelf.

        A longer word on it.

        Args:
            query (str): what to look for,
                in a few words
            top_k: how many passages

        Returns:
            passages: never described as an argument
        """
        filters.append(Filter())
        return [f"{query} {order} {len(filters)}"] * top_k

    @tool
    async def fail(self, how: Literal["tool", "bug", "gone", "timeout", "silent"]) -> str:
        match how:
            case "tool":
                raise ToolError("no such page")
            case "silent":
                raise ToolError
            case "gone":
                raise PeerLostError("retriever is gone")
            case "timeout":
                raise TimeoutError("mine")
            case _:
                raise KeyError("oops")

    @tool(timeout_s=0.01)
    async def hang(self) -> None:
        await anyio.sleep_forever()

    @tool(thread=True, timeout_s=5)
    def thread_name(self) -> str:
        return threading.current_thread().name

    @tool(max_output_bytes=5)
    async def say(self, text: str) -> str:
        return text

    @tool
    async def value(self) -> object:
        return {"a": None, "b": [1.5]}

    @tool
    async def unserializable(self) -> object:
        return object()


async def run(name: str, arguments: str = "{}") -> ToolResult:
    return await run_call(Shelf(), ToolCall("call_0_0", name, arguments.encode()), 5)


def test_the_schema_comes_from_hints_and_docstring() -> None:
    spec = Shelf.tools["search"].spec.to_openai()
    assert spec["type"] == "function"
    function = spec["function"]
    assert function["name"] == "search"
    assert function["description"] == "Search the shelf.\n\nA longer word on it."
    parameters = function["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["query"] == {
        "type": "string",
        "description": "what to look for, in a few words",
    }
    top_k = parameters["properties"]["top_k"]
    assert (top_k["minimum"], top_k["maximum"], top_k["default"]) == (1, 10, 3)
    assert top_k["description"] == "how many passages"
    assert parameters["$defs"]["Order"]["enum"] == ["new", "old"]
    assert parameters["$defs"]["Filter"]["properties"]["language"]["default"] == "en"


async def test_a_result_that_is_not_text_is_json() -> None:
    assert await run("value") == ToolResult('{"a":null,"b":[1.5]}', is_error=False)


async def test_a_mutable_default_is_not_shared_between_calls() -> None:
    for _ in range(2):
        result = await run("search", '{"query": "x", "top_k": 1}')
        assert result.text == '["x new 1"]'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"query": "x", "evil": 1}', "unknown field `evil`"),
        ('{"query": 1}', "Expected `str`, got `int`"),
        ('{"query": "x", "top_k": 11}', "Expected `int` <= 10"),
        ('{"query": "x", "top_k": "3"}', "Expected `int`, got `str`"),
        ('{"query": "x", "order": "best"}', "Invalid enum value"),
        ("{}", "missing required field `query`"),
        ("[]", "Expected `object`"),
        ("{oops", "not valid JSON"),
        ("", "not valid JSON"),
        ('{"query": "\\ud800"}', "not valid JSON"),
        ('{"query": "x", "top_k": ' + "9" * 5000 + "}", "arguments"),
        ('{"query": ' + "[" * 100_000, "arguments"),
    ],
)
async def test_bad_arguments_are_told_to_the_model(arguments: str, message: str) -> None:
    result = await run("search", arguments)
    assert result.is_error
    assert result.text.startswith("error: ")
    assert message in result.text


async def test_arguments_that_are_not_utf8_are_told_to_the_model() -> None:
    result = await run_call(Shelf(), ToolCall("c", "search", b'{"query": "\xff"}'), 5)
    assert result.is_error
    assert "not valid JSON" in result.text


async def test_an_unknown_tool_is_an_observation_that_names_the_known_ones() -> None:
    result = await run("rm")
    assert result.is_error
    assert "there is no tool 'rm'; tools: fail, hang, say, search" in result.text


async def test_the_text_of_a_tool_error_goes_to_the_model() -> None:
    assert await run("fail", '{"how": "tool"}') == ToolResult("error: no such page", is_error=True)
    assert (await run("fail", '{"how": "silent"}')).text == "error: the tool failed"


@pytest.mark.parametrize("how", ["bug", "timeout"])
async def test_any_other_exception_is_an_env_error_with_its_cause(how: str) -> None:
    with pytest.raises(EnvError, match=r"tool fail \(call call_0_0\) raised") as caught:
        await run("fail", f'{{"how": "{how}"}}')
    assert isinstance(caught.value.__cause__, KeyError | TimeoutError)


async def test_a_result_without_a_json_form_is_an_env_error() -> None:
    with pytest.raises(EnvError, match="tool unserializable"):
        await run("unserializable")


async def test_an_infrastructure_failure_keeps_its_class_and_is_retryable() -> None:
    with pytest.raises(PeerLostError, match="retriever is gone"):
        await run("fail", '{"how": "gone"}')


async def test_a_hung_tool_is_cut_at_its_timeout() -> None:
    result = await run("hang")
    assert result == ToolResult("error: hang timed out after 0.01 s", is_error=True)


async def test_a_tool_without_a_timeout_has_the_default_one() -> None:
    class Slow(Library):
        @tool
        async def wait(self) -> None:
            await anyio.sleep_forever()

    result = await run_call(Slow(), ToolCall("c", "wait", b"{}"), 0.01)
    assert result.text == "error: wait timed out after 0.01 s"


async def test_a_hung_thread_is_abandoned_at_its_timeout() -> None:
    released = threading.Event()

    class Blocking(Library):
        @tool(thread=True, timeout_s=0.01)
        def wait(self) -> None:
            released.wait(300)

    try:
        result = await run_call(Blocking(), ToolCall("c", "wait", b"{}"), 5)
    finally:
        released.set()
    assert result.text == "error: wait timed out after 0.01 s"


async def test_blocking_code_runs_in_a_thread() -> None:
    assert (await run("thread_name")).text != threading.main_thread().name


@pytest.mark.parametrize(
    ("text", "kept"),
    [("12345", "12345"), ("123456", "12345\n[output cut"), ("1234é6", "1234\n[output cut")],
)
async def test_long_output_is_cut_between_characters_and_marked(text: str, kept: str) -> None:
    result = await run("say", msgspec.json.encode({"text": text}).decode())
    assert result.text.startswith(kept)
    assert ("output cut" in result.text) == ("output cut" in kept)


async def test_the_mark_says_how_much_there_was() -> None:
    result = await run("say", '{"text": "1234567890"}')
    assert result.text == "12345\n[output cut after 5 bytes; it had 10 characters]"


def test_a_tool_is_callable_as_the_method_it_was() -> None:
    assert Shelf().thread_name() == threading.current_thread().name
    assert isinstance(Shelf.search, Tool)


async def test_a_plain_function_is_a_tool_too() -> None:
    @tool
    async def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    class Maths(Library):
        twice = double

    result = await run_call(Maths(), ToolCall("c", "double", b'{"number": 21}'), 5)
    assert result.text == "42"
    assert await double(4) == 8


def test_a_subclass_replaces_and_removes_tools_of_its_base() -> None:
    class Small(Shelf):
        hang = None  # type: ignore[assignment]

        @tool
        async def say(self) -> str:
            """Mine."""
            return ""

    assert "hang" not in Small.tools
    assert Small.tools["say"].spec.description == "Mine."
    assert set(Shelf.tools) - set(Small.tools) == {"hang"}


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="two tools named 'say'"):

        class Double(Shelf):
            @tool(name="say")
            async def tell(self) -> str:
                return ""


async def no_hint(self: object, query) -> None: ...  # type: ignore[no-untyped-def]
async def varargs(self: object, *query: str) -> None: ...
async def keywords(self: object, **query: str) -> None: ...
async def positional(self: object, query: str, /) -> None: ...
async def no_schema(self: object, query: threading.Thread) -> None: ...
async def fine(self: object) -> None: ...
def blocking(self: object) -> None: ...


@pytest.mark.parametrize(
    ("fn", "options", "message"),
    [
        (no_hint, {}, "'query' has no type hint"),
        (varargs, {}, "'query' must be passable by name"),
        (keywords, {}, "'query' must be passable by name"),
        (positional, {}, "'query' must be passable by name"),
        (no_schema, {}, "have no JSON schema"),
        (blocking, {}, "make it async def, or say thread=True"),
        (fine, {"thread": True}, "drop thread=True"),
        (fine, {"timeout_s": 0}, "must be positive"),
        (fine, {"max_output_bytes": 0}, "min 1"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_declared(
    fn: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        tool(**options)(fn)


def test_a_misused_decorator_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=r"has no function below it; write `@tool\(name='look'\)`"):
        tool("look")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option 'timeout'; did you mean timeout_s"):
        tool(timeout=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="no option 'zzz'; there are name, timeout_s"):
        tool(zzz=3)  # type: ignore[call-overload]
