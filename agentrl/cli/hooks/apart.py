"""A hook is tried in a process of its own, which it may end or hold for ever.

parent: try_hook -> child: load, call as a run does, look at what it gave -> verdict
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from agentrl.cli.hooks.deadline import Deadline
from agentrl.cli.hooks.noted import Noted
from agentrl.cli.hooks.table import HOOKS, Hook
from agentrl.cli.hooks.trial import begun
from agentrl.errors import AgentRLError, ConfigError, HookError
from agentrl.trial import answer, asked, places_in, run_apart
from agentrl.user_code import place_in, watching
from agentrl.user_traceback import words_of

__all__ = ["Tried", "tried_here", "try_hook"]

#: Seconds that the process has to start in, and to import torch.
_START_S = 300.0


class _Question(msgspec.Struct, frozen=True):
    name: str
    path: str
    flags: list[str]
    limit_s: float
    folder: str


class Tried(msgspec.Struct, frozen=True):
    """What was found: lines, and the error that a run would end with, with its exit code.
    `printed`: by the hook."""

    lines: list[str]
    error: str = ""
    exit_code: int = 0
    printed: str = ""


def try_hook(hook: Hook, path: str, flags: list[str], limit_s: float) -> Tried:
    """Try what `path` names, with further flags of a run; it has `limit_s` seconds."""
    with TemporaryDirectory(prefix="agentrl-hook-") as folder:
        question = _Question(hook.name, path, flags, limit_s, folder)
        ended = run_apart(__name__, msgspec.json.encode(question), limit_s + _START_S)
    if ended.answer:
        tried = msgspec.json.decode(ended.answer, type=Tried)
        return msgspec.structs.replace(tried, printed=ended.printed)
    if "Timeout" in ended.printed:
        return _late(hook, path, limit_s, list(places_in(ended.printed))[::-1])
    text = f"{hook.argv[-1]} {path} ended the process; raise an error in its place"
    return Tried([], text, HookError.exit_code, ended.printed)


def _late(hook: Hook, path: str, limit_s: float, places: list[str]) -> Tried:
    where = ". It stands at\n" + "\n".join(f"    {place}" for place in places) if places else ""
    late = f"did not come to an end within {limit_s:g} s; --timeout gives it more"
    text = f"{hook.argv[-1]} {path} {late}{where}"
    return Tried([], text, HookError.exit_code)


# ---- in the process of its own -------------------------------------------------------------------


def main() -> None:
    """What the child runs."""
    question = msgspec.json.decode(asked(), type=_Question)
    for name in ("agentrl.actors", "agentrl.learner"):  # what is raised is told anyway
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hook = HOOKS[question.name]

    def late(places: list[str]) -> None:
        answer(msgspec.json.encode(_late(hook, question.path, question.limit_s, places)))

    deadline = Deadline(question.limit_s, late)
    folder = Path(question.folder)
    tried = tried_here(hook, question.path, question.flags, folder, deadline)
    answer(msgspec.json.encode(tried))


def tried_here(
    hook: Hook, path: str, flags: Sequence[str], folder: Path, deadline: Deadline
) -> Tried:
    """The same in this process. `folder` is for what is written. The time begins with the first
    line of the user's code."""
    noted = Noted()
    lines: list[str] = []
    try:
        tries = hook.tried_by()
        trial = begun([*hook.argv, path, *flags], folder, noted, deadline)
        with deadline, watching(noted):
            noted.only(loaded := hook.loaded(path))
            lines.append(_found(hook, loaded, noted))
            lines.extend(tries(trial))
    except AgentRLError as error:
        return Tried(lines, str(error), error.exit_code)
    except BaseException as error:  # whatever it is, it is the user's
        return Tried(lines, words_of(error), ConfigError.exit_code)
    return Tried(lines)


def _found(hook: Hook, loaded: Any, noted: Noted) -> str:
    """What was loaded, and which of the signatures it has."""
    signature = noted.signature_of(loaded)
    if signature is None:
        return f"{getattr(loaded, '__name__', loaded)}: {hook.also}"
    whose = "slime's" if signature.is_slimes else "ours"
    return f"{place_in(loaded)} has the signature f{hook.head(signature)}, {whose}"
