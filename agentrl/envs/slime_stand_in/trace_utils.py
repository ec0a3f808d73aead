"""Spans that functions of slime's users open around what they do. None of them is recorded:
`agentrl view` shows each call of an episode with its times."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["build_sglang_meta_trace_attrs", "trace_event", "trace_function", "trace_span"]

F = TypeVar("F", bound=Callable[..., Any])


class _Span:
    """Takes attributes, which go nowhere."""

    def set(self, key: str, value: Any) -> "_Span":
        return self

    def update(self, attrs: dict[str, Any] | None) -> "_Span":
        return self


@contextmanager
def trace_span(target: Any, name: str, **options: Any) -> Iterator[_Span]:
    """A span around the block."""
    yield _Span()


def trace_function(name: str, **options: Any) -> Callable[[F], F]:
    """A span around a function, which stays as it is."""
    return lambda function: function


def trace_event(target: Any, name: str, **options: Any) -> None:
    """A moment."""


def build_sglang_meta_trace_attrs(meta: dict[str, Any]) -> dict[str, Any]:
    """What a span would be told of an answer."""
    reason = meta.get("finish_reason")
    found = {"finish_reason": reason.get("type") if isinstance(reason, dict) else reason}
    found["sglang_request_id"] = meta.get("id")
    return {name: value for name, value in found.items() if value is not None}
