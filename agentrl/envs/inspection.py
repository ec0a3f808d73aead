"""What a class must look like to be an `Env`: found by looking at it, before anything is played.

Refused, each with the class, the method, its line and what to write instead: a method that is no
`async def`, or is a tool, or a generator; one that cannot be called as the framework calls it; one
that returns what can never be right (nothing at all, a tuple from `step`); a class without `reset`,
or with neither `score` nor `step`. Of a `Rollout` only `solve`, `close` and `score_group` count.

What a function returns is read from its source; without source that check is left out. Beside a
`step` of its own, a class's `score` is its own business.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from agentrl.envs.env import Env
from agentrl.envs.rollout import Rollout
from agentrl.errors import ConfigError
from agentrl.tools.tool import Tool
from agentrl.user_traceback import shown_path

__all__ = ["check_class"]

#: The first line of each method, as it should be written.
_FIRST_LINE = {
    "reset": "async def reset(self, *, seed, task):",
    "step": "async def step(self, turn):",
    "score": "async def score(self, text):",
    "close": "async def close(self):",
    "score_group": "async def score_group(self, task, episodes):",
    "snapshot": "async def snapshot(self):",
    "restore": "async def restore(self, state, *, seed, task):",
    "solve": "async def solve(self, task, chat):",
}
#: The same of each class method, below `@classmethod`.
_CLASS_LINE = {
    "service_specs": "def service_specs(cls, args):",
    "train_tasks": "def train_tasks(cls, args, *, seed):",
    "eval_tasks": "def eval_tasks(cls, args):",
}
#: How the framework calls each of them.
_CALLS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "reset": ((), {"seed": 0, "task": {}}),
    "step": ((None,), {}),
    "score": (("",), {}),
    "close": ((), {}),
    "score_group": (({}, []), {}),
    "snapshot": ((), {}),
    "restore": ((b"",), {"seed": 0, "task": {}}),
    "solve": (({}, None), {}),
    "service_specs": (({},), {}),
    "train_tasks": (({},), {"seed": 0}),
    "eval_tasks": (({},), {}),
}
_RETURN = {
    "reset": "return a list of messages, as in `return [Message.user(text)]`",
    "step": "return a Step, as in `return Step(messages=[...], reward=0.0, terminated=False)`",
    "score": "return a number",
}
#: The methods of a Rollout; those of any other Env are all but `solve`.
_OF_ROLLOUTS = ("solve", "close", "score_group")
_NEVER = (ast.Dict, ast.Set, ast.JoinedStr)


def check_class(cls: type[Env]) -> None:
    """Raise ConfigError for the first thing that cannot work."""
    cls.described_metrics()
    names: Sequence[str] = [name for name in _FIRST_LINE if name != "solve"]
    if not issubclass(cls, Rollout):
        _check_completeness(cls)
    elif cls.solve is Rollout.solve:
        raise ConfigError(f"{cls.__qualname__} has no solve; write `{_FIRST_LINE['solve']}`")
    else:
        names = _OF_ROLLOUTS
    for name in names:
        if name != "score" or cls.step is Env.step:
            _check_kind(cls, name)
            _check_signature(cls, name)
            _check_returns(cls, name)
    for name in _CLASS_LINE:
        if inspect.isfunction(inspect.getattr_static(cls, name)):
            _refuse(cls, name, "is no class method", "write `@classmethod` above it")
        _check_signature(cls, name)


def _check_kind(cls: type[Env], name: str) -> None:
    method = getattr(cls, name)
    if isinstance(method, Tool):
        advice = "the framework calls it, not the model; drop `@tool`"
        raise ConfigError(f"{cls.__qualname__}.{name} is a tool; {advice}")
    line = f"write `{_FIRST_LINE[name]}`"
    if not callable(method):
        raise ConfigError(f"{cls.__qualname__}.{name} is {method!r:.80}, not a method; {line}")
    plain = _plain(method)
    if inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
        _refuse(cls, name, "is a generator", f"use `return` in it, not `yield`, and {line}")
    if inspect.isfunction(plain) and not (
        inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(method)
    ):
        _refuse(cls, name, "is a plain def", line)


def _check_signature(cls: type[Env], name: str) -> None:
    method = getattr(cls, name)
    if not (inspect.isfunction(method) or inspect.ismethod(method)):
        return
    positional, named = _CALLS[name]
    is_static = isinstance(inspect.getattr_static(cls, name), staticmethod)
    owner = () if is_static or inspect.ismethod(method) else (None,)
    signature = inspect.signature(method)
    try:
        signature.bind(*owner, *positional, **named)
    except TypeError as error:
        defect = f"takes {signature}, and the framework cannot call that ({error})"
        _refuse(cls, name, defect, f"write `{(_FIRST_LINE | _CLASS_LINE)[name]}`")


def _check_completeness(cls: type[Env]) -> None:
    name = cls.__qualname__
    own = ", ".join(sorted({*_own_functions(cls)})) or "no methods"
    if cls.reset is Env.reset:
        raise ConfigError(
            f"{name} has no reset, which begins an episode (it has {own}); write "
            f"`{_FIRST_LINE['reset']}` and {_RETURN['reset']}"
        )
    if cls.score is Env.score and cls.step is Env.step and not cls.scores_groups:
        raise ConfigError(
            f"{name} has neither score nor step, so nothing would ever be rewarded (it has {own}); "
            f"write `{_FIRST_LINE['score']}` and {_RETURN['score']}"
        )


def _own_functions(cls: type[Env]) -> Iterator[str]:
    for base in cls.__mro__[: cls.__mro__.index(Env)]:
        for name, value in vars(base).items():
            if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, Tool)):
                yield name


def _check_returns(cls: type[Env], name: str) -> None:
    method = getattr(cls, name)
    if name not in _RETURN or method is getattr(Env, name):
        return
    body = _body(_plain(method))
    if not body:
        return
    returned = list(_returns(body))
    if not returned and not isinstance(body[-1], ast.Raise):
        _refuse(cls, name, "has no `return`", _RETURN[name])
    for node in returned:
        if _is_never_right(node.value, name):
            shown = "return" if node.value is None else f"return {ast.unparse(node.value)}"
            _refuse(cls, name, f"says `{shown:.60}`", _RETURN[name], node.lineno)


def _is_never_right(value: ast.expr | None, name: str) -> bool:
    if value is None or isinstance(value, _NEVER):
        return True
    if isinstance(value, ast.Constant):
        return name != "score" or not isinstance(value.value, int | float)
    return isinstance(value, ast.Tuple | ast.List) and name != "reset"


def _body(function: Callable[..., Any]) -> list[ast.stmt]:
    """The statements of a function; [] when they cannot be read."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return []
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return node.body


def _returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    """Its own return statements, not those of functions inside it."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.Return):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))


def _plain(method: Callable[..., Any]) -> Callable[..., Any]:
    """The function under decorators and binding."""
    plain = inspect.unwrap(method)
    function: Callable[..., Any] = getattr(plain, "__func__", plain)
    return function


def _refuse(cls: type[Env], name: str, defect: str, advice: str, line: int = 1) -> NoReturn:
    """`line` counts from 1 in the method's source."""
    code = getattr(_plain(getattr(cls, name)), "__code__", None)
    place = ""
    if code is not None:
        place = f" ({shown_path(code.co_filename)}:{code.co_firstlineno + line - 1})"
    raise ConfigError(f"{cls.__qualname__}.{name}{place} {defect}; {advice}")
