"""`@tool`: a typed function that the model may call.

The argument schema comes from the type hints and the Google-style docstring; what a call may carry
is decoded strictly against it. Raise `ToolError` to tell the model what went wrong.

Refused at decoration: a parameter without a hint, `*args`, `**kwargs`, positional-only parameters,
a plain `def` without `thread=True`.

A coroutine is cut at its timeout wherever it awaits. Code that blocks the event loop (`time.sleep`,
a tight loop) cannot be cut and stalls every episode of the worker: give such a tool `thread=True`.
A thread cannot be killed either: at its timeout it is abandoned and its result ignored.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, Generic, Protocol, TypeVar, overload

import msgspec

from agentrl.nearest import nearest
from agentrl.tools.schema import Parameters, read_parameters

__all__ = ["HasTools", "Tool", "ToolError", "ToolSpec", "collect_tools", "tool"]

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = ("name", "timeout_s", "max_output_bytes", "thread", "parallel", "max_concurrency")


class ToolError(Exception):
    """Its text goes to the model as the result of the call; the episode goes on."""


class ToolSpec(msgspec.Struct, frozen=True):
    """What the model is told of a tool. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """As OpenAI's function-calling schema and the `tools` of Hugging Face chat templates."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


class Tool(Generic[F]):
    """A tool and its schema. As a class attribute it binds like a method. `parameters`: those that
    the function's hints do not tell."""

    def __init__(
        self,
        fn: F,
        *,
        name: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int = 16_384,
        thread: bool = False,
        parallel: bool = False,
        max_concurrency: int | None = None,
        parameters: Parameters | None = None,
    ) -> None:
        self.fn = fn
        self.name = name or fn.__name__
        self.timeout_s = timeout_s
        self.max_output_bytes = max_output_bytes
        self.thread = thread
        self.parallel = parallel
        self.max_concurrency = max_concurrency
        _check_options(self)
        self.parameters = read_parameters(fn) if parameters is None else parameters
        self.spec = ToolSpec(self.name, self.parameters.summary, self.parameters.schema)
        self.__doc__ = fn.__doc__
        self.__module__ = fn.__module__

    def __repr__(self) -> str:
        return f"<Tool {self.name} of {self.fn.__module__}.{self.fn.__qualname__}>"

    @overload
    def __get__(self, owner: None, cls: type) -> "Tool[F]": ...
    @overload
    def __get__(self, owner: object, cls: type | None = None) -> Callable[..., Any]: ...
    def __get__(self, owner: object, cls: type | None = None) -> "Tool[F] | Callable[..., Any]":
        return self if owner is None else self.bind(owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without schema, timeout or cap."""
        return self.fn(*args, **kwargs)

    def bind(self, owner: object) -> Callable[..., Any]:
        """The function as called on `owner`; a function without `self` is as it is."""
        return MethodType(self.fn, owner) if self.parameters.is_method else self.fn

    def decode(self, raw: bytes) -> dict[str, Any]:
        """Arguments by name from the JSON bytes of a call, or `ToolError` saying what is wrong."""
        try:
            return self.parameters.decode(raw)
        except msgspec.ValidationError as error:
            raise ToolError(f"invalid arguments for {self.name}: {error}") from error
        # A JSON number too long for int is a ValueError, bad UTF-8 a UnicodeDecodeError.
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise ToolError(f"the arguments of {self.name} are not valid JSON: {error}") from error
        except RecursionError as error:
            raise ToolError(f"the arguments of {self.name} are nested too deeply") from error


class HasTools(Protocol):
    """What `run_call` needs of an Env."""

    @property
    def tools(self) -> Mapping[str, Tool[Any]]: ...


@overload
def tool(fn: F, /) -> Tool[F]: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    max_output_bytes: int = 16_384,
    thread: bool = False,
    parallel: bool = False,
    max_concurrency: int | None = None,
) -> Callable[[F], Tool[F]]: ...
def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of an `async def`, or of a `def` with `thread=True`; a method or a function.

    `timeout_s`: deadline of a call (default: `--tool-timeout-s`). `max_output_bytes`: a longer
    result is cut and marked. `thread`: run in a worker thread, for blocking code. `parallel`: calls
    of one turn that stand side by side may run at once; say it of a tool that changes nothing.
    `max_concurrency`: calls that run at once in a worker process, of all its episodes; waiting for
    a turn is not counted as the tool's time. Not for a `thread`.
    """
    if fn is not None and not callable(fn):
        raise TypeError(f"@tool({fn!r}) has no function below it; write `@tool(name={fn!r})`")
    if unknown := [option for option in options if option not in _OPTIONS]:
        meant = nearest(unknown[0], _OPTIONS) or f"; there are {', '.join(_OPTIONS)}"
        raise TypeError(f"@tool has no option {unknown[0]!r}{meant}")
    if fn is not None:
        return Tool(fn)
    return lambda fn: Tool(fn, **options)


def collect_tools(cls: type) -> dict[str, Tool[Any]]:
    """Tools of a class by name. A subclass replaces a base's tool by defining its attribute again;
    anything but a tool (`search = None`) removes it. Two attributes with one tool name: TypeError.
    """
    attributes: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        attributes.update(vars(base))
    found: dict[str, Tool[Any]] = {}
    for value in attributes.values():
        if not isinstance(value, Tool):
            continue
        if value.name in found:
            raise TypeError(f"{cls.__name__} has two tools named {value.name!r}; rename one")
        found[value.name] = value
    return found


def _check_options(made: Tool[Any]) -> None:
    is_coroutine = inspect.iscoroutinefunction(made.fn)
    if made.thread == is_coroutine:
        advice = "drop thread=True" if is_coroutine else "make it async def, or say thread=True"
        raise TypeError(f"tool {made.name!r} cannot run like this: {advice}")
    if made.timeout_s is not None and not made.timeout_s > 0:
        raise TypeError(f"tool {made.name!r} has timeout_s={made.timeout_s}; it must be positive")
    if made.max_concurrency is not None:
        if not isinstance(made.max_concurrency, int) or made.max_concurrency < 1:
            raise TypeError(f"tool {made.name!r} has max_concurrency={made.max_concurrency}; min 1")
        if made.thread:
            raise TypeError(
                f"tool {made.name!r} has max_concurrency and thread=True: a thread that is left "
                "behind at its timeout would not be counted; hold a lock in the tool instead"
            )
    if made.max_output_bytes < 1:
        raise TypeError(f"tool {made.name!r} has max_output_bytes={made.max_output_bytes}; min 1")
