"""What was given to a hook of the user's while it was tried, and what it gave."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.user_code import Signature, place_in

__all__ = ["Noted", "shown"]

_MOST = 4


class Noted:
    """Watches hooks as they are loaded (`user_code.watching`)."""

    def __init__(self) -> None:
        self.num_calls = 0
        #: What its last call was given.
        self.given: tuple[Any, ...] = ()
        #: What its last call gave; where that was a function, what this gave.
        self.gave: Any = None
        self._only: Any = None
        self._signatures: dict[int, tuple[Callable[..., Any], Signature]] = {}

    def __call__(self, function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
        """`function`, whose calls are noted unless they are awaited."""
        self._signatures[id(function)] = function, signature
        is_awaited = inspect.iscoroutinefunction(function)
        return function if is_awaited else self._noted(function, function)

    def only(self, loaded: Any) -> None:
        """From now on note no calls but those of `loaded`: other flags may name hooks too."""
        self._only = inspect.unwrap(loaded)

    def signature_of(self, loaded: Any) -> Signature | None:
        """Of what was loaded of a function that has been seen; None: it is none."""
        while loaded is not None:
            if id(loaded) in self._signatures:
                return self._signatures[id(loaded)][1]
            loaded = getattr(loaded, "__wrapped__", None)
        return None

    def _noted(self, function: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, which is `hook` or what that gave."""

        @functools.wraps(function)
        def noted(*args: Any, **named: Any) -> Any:
            found = function(*args, **named)
            if self._only is not None and self._only is not inspect.unwrap(hook):
                return found
            self.num_calls += 1
            self.given, self.gave = args, found
            is_step = inspect.isfunction(found) and not inspect.iscoroutinefunction(found)
            return self._noted(found, hook) if is_step else found

        return noted


def shown(value: Any) -> str:
    """`value` on a line: numbers are rounded, of what is long the beginning is shown."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        items = [f"{name}: {shown(each)}" for name, each in list(value.items())[:_MOST]]
        return f"{{{_cut(items, len(value))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{_cut([shown(each) for each in value[:_MOST]], len(value))}]"
    if hasattr(value, "shape") and hasattr(value, "tolist"):
        found = value.tolist()
        kind = f"{type(value).__name__}{list(value.shape)} " if value.shape else ""
        return f"{kind}{shown(found)}"
    return place_in(value) if inspect.isfunction(value) else f"{value!r:.80}"


def _cut(items: list[str], size: int) -> str:
    return ", ".join([*items, *(["..."] if size > len(items) else [])])
