"""All that is wrong is told at once: several checks, one error."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agentrl.errors import AgentRLError, ConfigError

__all__ = ["beside", "gather"]


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


def _once(texts: Iterable[str]) -> Iterator[str]:
    """The lines of all `texts`; what an earlier one says, a later one need not."""
    said: set[str] = set()
    for text in texts:
        lines = text.splitlines()
        yield from (line for line in lines if line not in said)
        said.update(lines)


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
