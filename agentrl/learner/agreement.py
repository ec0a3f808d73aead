"""Ranks that fail together: what goes wrong on one is raised on all.

A rank that raises alone leaves the others in a collective until its timeout. So work that can fail
on one rank is attempted, its error is told to the others as data, and all raise.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from agentrl import errors
from agentrl.errors import AgentRLError, InfrastructureError

__all__ = ["Failure", "attempt", "failure_of", "retold"]

T = TypeVar("T")


class Failure(msgspec.Struct, frozen=True):
    """An error on its way to other ranks: the name of its class and its text."""

    kind: str
    text: str


def attempt(action: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What `action` returns, or the error it raises; an OSError as InfrastructureError."""
    try:
        return action(), None
    except OSError as error:
        wrapped = InfrastructureError(str(error))
        wrapped.__cause__ = error
        return None, wrapped
    except Exception as error:  # whatever it is, the other ranks are waiting
        return None, error


def failure_of(error: Exception | None) -> Failure | None:
    """`error` as data."""
    return None if error is None else Failure(type(error).__name__, str(error))


def retold(rank: int, failure: Failure) -> AgentRLError:
    """The error that `rank` told of. Of its class if that is agentrl's, else AgentRLError."""
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, AgentRLError):
        return kind(f"learner rank {rank}: {failure.text}")
    return AgentRLError(f"learner rank {rank}: {failure.kind}: {failure.text}")
