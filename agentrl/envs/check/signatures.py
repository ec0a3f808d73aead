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
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from agentrl.envs.env import Env
from agentrl.envs.rollout import Rollout
from agentrl.errors import ConfigError
from agentrl.tools.tool import Tool
from agentrl.user_traceback import shown_path

__all__ = ["check_class"]

#: The first line of each method, as it should be written, and as the framework calls it.
_LINES = {
    "reset": "async def reset(self, *, seed, task):",
    "step": "async def step(self, turn):",
    "score": "async def score(self, text):",
    "close": "async def close(self):",
    "score_group": "async def score_group(self, task, episodes):",
    "snapshot": "async def snapshot(self):",
    "restore": "async def restore(self, state, *, seed, task):",
    "solve": "async def solve(self, task, chat):",
    "service_specs": "def service_specs(cls, args):",
    "train_tasks": "def train_tasks(cls, args, *, seed):",
    "eval_tasks": "def eval_tasks(cls, args):",
}
#: Those that are class methods, those of a Rollout, and those of any other Env.
_OF_CLASSES = ("service_specs", "train_tasks", "eval_tasks")
_OF_ROLLOUTS = ("solve", "close", "score_group")
_OF_ENVS = [name for name in _LINES if name not in (*_OF_CLASSES, "solve")]
_RETURN = {
    "reset": "return a list of messages, as in `return [Message.user(text)]`",
    "step": "return a Step, as in `return Step(messages=[...], reward=0.0, terminated=False)`",
    "score": "return a number",
}
_NEVER = (ast.Dict, ast.Set, ast.JoinedStr)


def check_class(cls: type[Env]) -> None:
    """Raise ConfigError for the first thing that cannot work."""
    cls.described_metrics()
    if not issubclass(cls, Rollout):
        _check_completeness(cls)
    elif cls.solve is Rollout.solve:
        raise ConfigError(f"{cls.__qualname__} has no solve; write `{_LINES['solve']}`")
    for name in _OF_ROLLOUTS if issubclass(cls, Rollout) else _OF_ENVS:
        if name != "score" or cls.step is Env.step:
            _check_kind(cls, name)
            _check_signature(cls, name)
            _check_returns(cls, name)
    for name in _OF_CLASSES:
        if inspect.isfunction(inspect.getattr_static(cls, name)):
            _refuse(cls, name, "is no class method", "write `@classmethod` above it")
        _check_signature(cls, name)


def _check_kind(cls: type[Env], name: str) -> None:
    method = getattr(cls, name)
    if isinstance(method, Tool):
        advice = "the framework calls it, not the model; drop `@tool`"
        raise ConfigError(f"{cls.__qualname__}.{name} is a tool; {advice}")
    line = f"write `{_LINES[name]}`"
    if not callable(method):
        raise ConfigError(f"{cls.__qualname__}.{name} is {method!r:.80}, not a method; {line}")
    plain = _plain(method)
    if inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
        _refuse(cls, name, "is a generator", f"use `return` in it, not `yield`, and {line}")
    is_async = inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(method)
    if inspect.isfunction(plain) and not is_async:
        _refuse(cls, name, "is a plain def", line)


def _check_signature(cls: type[Env], name: str) -> None:
    method = getattr(cls, name)
    if not (inspect.isfunction(method) or inspect.ismethod(method)):
        return
    is_static = isinstance(inspect.getattr_static(cls, name), staticmethod)
    owner, *positional = _function(f"{_LINES[name]} ...").args.args
    called = positional if is_static or inspect.ismethod(method) else [owner, *positional]
    named = [argument.arg for argument in _function(f"{_LINES[name]} ...").args.kwonlyargs]
    signature = inspect.signature(method)
    try:
        signature.bind(*called, **dict.fromkeys(named))
    except TypeError as error:
        defect = f"takes {signature}, and the framework cannot call that ({error})"
        _refuse(cls, name, defect, f"write `{_LINES[name]}`")


def _check_completeness(cls: type[Env]) -> None:
    name = cls.__qualname__
    own = ", ".join(sorted({*_own_functions(cls)})) or "no methods"
    if cls.reset is Env.reset:
        raise ConfigError(
            f"{name} has no reset, which begins an episode (it has {own}); write "
            f"`{_LINES['reset']}` and {_RETURN['reset']}"
        )
    if cls.score is Env.score and cls.step is Env.step and not cls.scores_groups:
        raise ConfigError(
            f"{name} has neither score nor step, so nothing would ever be rewarded (it has {own}); "
            f"write `{_LINES['score']}` and {_RETURN['score']}"
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
    try:
        body = _function(inspect.getsource(_plain(method))).body
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):
        return  # it cannot be read
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


def _function(source: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    """The function that a source defines; ValueError for any other."""
    (node,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise ValueError(f"{source!r:.40} is no function")
    return node


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
