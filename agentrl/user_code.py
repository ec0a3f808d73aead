"""User code by name or place: the one loader of every flag that names code.

    mine.py[:Name]      a file; one that defines a single such thing needs no name
    pkg.module:Name     a module; for functions `pkg.module.name` too
    name                agentrl's own, or what an installed package announces as an entry point

A `Kind` (environments, tools, filters ...) says what a value must be. A `hook` is a kind of
function with the signatures that are accepted, each with what makes our call of it; a function of
any other is refused here, before anything starts, with its line and the line to write. Nothing is
imported that was not asked for. Claims of different owners on one name refuse each other.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from agentrl.errors import ConfigError
from agentrl.nearest import near
from agentrl.paths import kind_of
from agentrl.slime_modules import show
from agentrl.user_traceback import shown_path, words_of

__all__ = [
    "Kind",
    "Signature",
    "announced",
    "claimed_twice",
    "hint",
    "hook",
    "load",
    "load_file",
    "load_named",
    "load_once",
    "place_in",
    "unknown",
    "watching",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Signature:
    """Positional parameters that a hook may take, and what makes of such a function the one that is
    called here. `keywords`: what it is called with by name beside them. `is_slimes`: scripts of
    slime's bring such functions."""

    parameters: tuple[str, ...]
    adapter: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    keywords: tuple[str, ...] = ()
    is_slimes: bool = False

    def fits(self, function: Callable[..., Any]) -> bool:
        """Whether `function` can be called so. Names are the author's to choose, but for a first
        one that is called `args`: that is how hooks of other trainers begin."""
        try:
            signature = inspect.signature(function)
            signature.bind(*self.parameters, **dict.fromkeys(self.keywords))
        except (TypeError, ValueError):
            return False
        first = next(iter(signature.parameters.values()))
        is_foreign = first.name == "args" and first.kind is not first.VAR_POSITIONAL
        return is_foreign == (self.parameters[0] == "args")

    def __str__(self) -> str:
        """As it is called: `(args, *, pg_loss, loss_masks)`."""
        named = ("*", *self.keywords) if self.keywords else ()
        return f"({', '.join((*self.parameters, *named))})"


@dataclass(frozen=True, eq=False)
class Kind(Generic[T]):
    """A kind of thing that a flag names.

    `noun` is what messages call one, `must_be` what a value that is none should have been, `write`
    the line that makes one. `take` makes of a module's value the thing that it is, or None.
    `builtin`: agentrl's own, name to `module:attribute`, or to a module that defines a single one.
    `flag`: where a place is given.
    `is_function`: `pkg.module.name` is a place too, and messages begin with the flag if there is
    one. `synonyms`: places in other projects whose function is one of agentrl's own, by its name.
    `accepts`: the signatures of a function. `form`: how its definition begins. `is_slimes`: scripts
    of slime's bring such things that are no functions. `elsewhere`: names that are given in another
    way, and how.
    """

    group: str
    noun: str
    must_be: str
    write: str
    take: Callable[[object], T | None]
    builtin: Mapping[str, str]
    flag: str = ""
    is_function: bool = False
    synonyms: Mapping[str, str] = field(default_factory=dict)
    accepts: tuple[Signature, ...] = ()
    form: str = "def"
    is_slimes: bool = False
    elsewhere: Mapping[str, str] = field(default_factory=dict)


#: Sees a function that is taken, and the signature that it has; what it returns is called instead.
Watch = Callable[[Callable[..., Any], Signature], Callable[..., Any]]
_watches: list[Watch] = []


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """While this lasts, each hook that is loaded is called through what `watch` makes of it: for
    those who try one, and show what it was given and gave."""
    _watches.append(watch)
    try:
        yield
    finally:
        _watches.remove(watch)


def hook(
    call: str,
    accepts: Sequence[Signature],
    *,
    may_await: bool = False,
    never: tuple[type, ...] = (),
    **kind: Any,
) -> Kind[Any]:
    """The kind of functions that are called as `call` says, and have one of `accepts`.
    `may_await`: `async def` is taken too. `never`: what can be called and means something else."""

    def take(value: object) -> Callable[..., Any] | None:
        if not callable(value) or isinstance(value, (type, *never)):
            return None
        if inspect.iscoroutinefunction(value) and not may_await:
            return None
        signature = next((known for known in accepts if known.fits(value)), None)
        if signature is None:
            return None
        for watch in _watches:
            value = watch(value, signature)
        return signature.adapter(value)

    name = call.partition("(")[0]
    slimes = [f"{name}{each}" for each in accepts if each.is_slimes]
    or_slimes = f", or slime's `def {slimes[0]}:`" if slimes and call not in slimes else ""
    return Kind(
        must_be=f"a function that can be called as `{call}`",
        write=f"`def {call}:`{or_slimes}",
        take=take,
        is_function=True,
        accepts=tuple(accepts),
        form="[async] def" if may_await else "def",
        **kind,
    )


def load(kind: Kind[T], spec: str) -> T:
    """What a flag names. Raises ConfigError when there is none, or several. A function in slime's
    signature may import what it needs of slime."""
    if kind.is_slimes or any(signature.is_slimes for signature in kind.accepts):
        show()
    spec = kind.synonyms.get(spec, spec)
    try:
        if spec in kind.elsewhere:
            raise ConfigError(kind.elsewhere[spec])
        if spec.endswith(".py") or ":" in spec:
            return _at(kind, spec)
        if kind.is_function and "." in spec and "/" not in spec:
            return _at(kind, ":".join(spec.rsplit(".", 1)))
        offered = load_named(kind, spec)
        if offered is None:
            raise unknown(kind, spec)
        return offered[1]
    except ConfigError as error:
        if not (kind.flag and kind.is_function):
            raise
        raise ConfigError(f"{kind.flag} {spec}: {error}") from error


@functools.cache
def load_once(kind: Kind[T], spec: str) -> T:
    """As `load`, once in a process: for what each episode asks for."""
    return load(kind, spec)


def load_named(kind: Kind[T], name: str) -> tuple[str, T] | None:
    """Who offers `name`, and what; None when nobody does.

    Raises ConfigError when it is claimed twice or cannot be imported.
    """
    claims = dict(_claims(kind, name))
    if len(claims) > 1:
        raise claimed_twice(kind, name, claims)
    for owner, target in claims.items():
        try:
            return owner, _at(kind, target)
        except ConfigError as error:
            raise ConfigError(f"{kind.noun} {name!r} of {owner} is broken: {error}") from error
    return None


def announced(kind: Kind[T]) -> Iterator[tuple[str, str]]:
    """Each name with each that offers it, agentrl first; nothing is imported for it."""
    points = importlib.metadata.entry_points(group=kind.group)
    for name in {**kind.builtin, **{point.name: "" for point in points}}:
        for owner, _ in _claims(kind, name):
            yield name, owner


def unknown(kind: Kind[T], name: str, also: Iterable[str] = ()) -> ConfigError:
    """There is nothing of that name; says what is near, or all there is."""
    known = {*also, *(known for known, _ in announced(kind))}
    is_file = Path(f"{name}.py").is_file()
    meant = f"; did you mean '{name}.py'?" if is_file else hint(name, known)
    return ConfigError(f"there is no {kind.noun} {name!r}{meant}")


def claimed_twice(kind: Kind[T], name: str, owners: Iterable[str]) -> ConfigError:
    """More than one offers `name`."""
    flag = f"{kind.flag} " if kind.flag else ""
    return ConfigError(
        f"{kind.noun} {name!r} is claimed by {' and by '.join(owners)}; say which with "
        f"{flag}pkg.module:Name"
    )


def hint(asked: str, known: Iterable[str]) -> str:
    """Names like the one that was asked for, or else all."""
    names = sorted(known)
    if meant := near(asked, names):
        return f"; did you mean {' or '.join(map(repr, meant))}?"
    return f"; known: {', '.join(names) or 'none'}"


def load_file(path: Path) -> ModuleType:
    """The module in a file, one however often it is asked for. Raises ConfigError.

    It may import what lies beside it: its folder comes last in `sys.path`, behind the standard
    library and every package, from now on, so that an import inside a function finds it too.
    """
    path = path.expanduser().resolve()
    # sys.modules also serves type hints.
    name = f"agentrl_env_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if (kind := kind_of(path)) != "a file":
        lack = f"there is no file {path}" if kind == "nothing" else f"{path} is {kind}, not code"
        raise ConfigError(lack)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(_import_failed(str(path), error)) from error
    return module


def place_in(function: Callable[..., Any]) -> str:
    """`name (path/to/file.py:12)`, where the author wrote it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} ({shown_path(code.co_filename)}:{code.co_firstlineno})" if code else name


def _at(kind: Kind[T], place: str) -> T:
    """What stands at `pkg.module:attribute` or `path/to/file.py:attribute`; of a module or a file
    alone, the only one of its kind that it defines."""
    home, colon, attribute = place.rpartition(":") if ":" in place else (place, "", "")
    module = (
        load_file(Path(home)) if home.endswith(".py") else _load_module(home, colon + attribute)
    )
    if not colon:
        return _only(kind, module, home)
    found = getattr(module, attribute, None)
    if found is None:
        here = [name for name, value in vars(module).items() if kind.take(value) is not None]
        raise ConfigError(f"{home} has no {attribute!r}{hint(attribute, here)}")
    taken = kind.take(found)
    if taken is None:
        raise ConfigError(f"{place} is {_shown(found)}, not {kind.must_be}; write {kind.write}")
    return taken


def _only(kind: Kind[T], module: ModuleType, path: str) -> T:
    """The one such thing that the module itself defines."""
    found: dict[str, T] = {}
    for name, value in vars(module).items():
        taken = kind.take(value)
        is_its_own = getattr(taken, "__module__", None) == module.__name__
        if taken is not None and is_its_own and taken not in found.values():
            found[getattr(taken, "__name__", name)] = taken
    if len(found) == 1:
        (only,) = found.values()
        return only
    if not found:
        raise ConfigError(f"{path} defines no {kind.noun}; write {kind.write}")
    flag = f"{kind.flag} " if kind.flag else ""
    raise ConfigError(
        f"{path} defines {len(found)} {kind.noun}s, {', '.join(found)}; say which: "
        f"{flag}{path}:{next(iter(found))}"
    )


def _claims(kind: Kind[T], name: str) -> Iterator[tuple[str, str]]:
    """Who offers `name`, and the place of what they offer."""
    if name in kind.builtin:
        yield "agentrl", kind.builtin[name]
    for point in importlib.metadata.entry_points(group=kind.group, name=name):
        owner = point.dist.name if point.dist is not None else "an unnamed package"
        yield f"{owner} ({point.value})", point.value


def _load_module(name: str, attribute: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        file = Path(name.replace(".", "/") + ".py")
        is_lacking = isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))
        advice = f"; put its folder on PYTHONPATH, or name the file (path/to/{file.name})"
        if file.is_file():
            advice = f"; did you mean '{file}{attribute}'?"
        raise ConfigError(_import_failed(name, error) + advice * is_lacking) from error


def _import_failed(what: str, error: BaseException) -> str:
    return f"cannot import {what}: {words_of(error)}"


def _shown(value: object) -> str:
    """A function by its head and line, anything else as Python shows it."""
    if not inspect.isfunction(value):
        return f"{value!r:.200}"
    code = inspect.unwrap(value).__code__
    head = f"{'async ' * inspect.iscoroutinefunction(value)}def {value.__name__}"
    place = f"{shown_path(code.co_filename)}:{code.co_firstlineno}"
    return f"`{head}{inspect.signature(value)!s:.200}` ({place})"
