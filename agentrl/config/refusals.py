"""All that is wrong is told at once: several checks, one error."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agentrl.errors import AgentRLError, ConfigError

__all__ = ["beside", "gather"]

#: How a line ends, before the name, that tells of a file which is not there.
_LACKS = "there is no file "


def gather(*checks: Callable[[], list[str] | None]) -> list[str]:
    """The notes of all `checks`. Raises the first error, with the words of all."""
    notes: list[str] = []
    errors: list[AgentRLError] = []
    for check in checks:
        try:
            notes += check() or []
        except AgentRLError as error:
            errors.append(error)
    if errors:
        raise type(errors[0])("\n".join(_once(map(str, errors))))
    return notes


def _once(texts: Iterable[str]) -> list[str]:
    """The lines of all `texts`; what an earlier one says, a later one need not. A file that is not
    there is told once, with each flag that names it."""
    told: list[str] = []
    said: set[str] = set()
    lacking: dict[str, int] = {}
    for text in texts:
        lines = text.splitlines()
        for line in lines:
            head, lacks, file = line.partition(_LACKS)
            if line in said:
                continue
            if lacks and file in lacking:
                told[lacking[file]] = _with_flag(told[lacking[file]], head)
            else:
                lacking |= {file: len(told)} if lacks else {}
                told.append(line)
        said.update(lines)
    return told


def _with_flag(line: str, head: str) -> str:
    """`line` with the flag of `head` too, if it is another flag's line of the same file."""
    heads, lacks, file = line.partition(_LACKS)
    flags, flag = heads.removesuffix(": "), head.removesuffix(": ")
    if not flag.startswith("--") or flag in flags.split(", "):
        return line
    return f"{flags}, {flag}: {lacks}{file}"


@contextmanager
def beside(refused: list[str]) -> Iterator[None]:
    """Raise ConfigError with the lines of `refused`, and with what is refused within."""
    try:
        yield
    except AgentRLError as error:
        if not refused:
            raise
        raise ConfigError("\n".join([*refused, str(error)])) from error
    if refused:
        raise ConfigError("\n".join(refused))
